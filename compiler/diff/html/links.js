// Moving about: from change to change, the search, and links into views.

function drawPosition() {
  const n = cards().length;
  const at = cards().findIndex(c => c.id === `card-${current}`);
  byId('position').textContent = n ? `${at >= 0 ? at + 1 : '–'} / ${n}` : '0 / 0';
  byId('previous').disabled = byId('next').disabled = n === 0;
}

// changes

function visit(card, open = false) {
  if (open) card.open = true;
  current = Number(card.id.slice('card-'.length));
  for (const c of cards()) c.classList.toggle('lit', c === card);
  const summary = card.querySelector('summary');
  summary.focus({ preventScroll: true });
  summary.scrollIntoView({ block: 'nearest' });
  const top = summary.getBoundingClientRect().top - byId('name').closest('header').offsetHeight;
  if (top < 8) scrollBy(0, top - 16);
  light(current);
  drawPosition();
}

/** The next edit, or the next change of the view that has the focus. */
function step(by) {
  const focus = document.activeElement;
  if (showing?.stops && byId('panels').contains(focus)) {
    const side = by > 0 ? Node.DOCUMENT_POSITION_FOLLOWING : Node.DOCUMENT_POSITION_PRECEDING;
    const there = [...showing.section.querySelectorAll(showing.stops)].filter(x => focus.compareDocumentPosition(x) & side);
    const near = there.at(by > 0 ? 0 : -1);
    if (near) goTo(near);
    return;
  }
  const all = cards();
  const at = all.findIndex(c => c.id === `card-${current}`);
  const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  if (!all.length) return;
  visit(all[to]);
  history.replaceState(null, '', anchor(`edit-${current}`));
}

/** Puts the focus on a change of a view. */
function goTo(made) {
  if (made.closest('.tree')) {
    const old = document.querySelector('.tree [tabindex="0"]');
    if (old) old.tabIndex = -1;
    made.tabIndex = 0;
    active = made.id;
  }
  made.focus({ preventScroll: true });
  const view = made.closest('.view');
  const inside = view && view.scrollHeight > view.clientHeight + 4;
  if (inside) {
    const [r, v] = [made.getBoundingClientRect(), view.getBoundingClientRect()];
    if (r.top < v.top + 40 || r.bottom > v.bottom - 20) scrollInside(made);
  } else made.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

function setAll(open) {
  for (const c of cards()) setOpen(c, open);
  if (!open) opened.clear();
  for (const row of tree) {
    row.pinned = false;
    if (row.c.length) opened.set(row.id, open);
    if (open) opened.set(`gap-${row.id}`, true);
  }
  if (!open) for (const row of report.tree) row.pinned = false;
  drawTree();
}

function setOpen(card, open) {
  card.open = open;
  fill(
    card,
    report.edits.find(e => `card-${e.n}` === card.id),
  );
}

/** All is open on paper, every view too, and as before afterwards. */
function openForPrint() {
  const before = showing;
  const cardsOpen = cards().filter(c => c.open);
  const rowsOpen = new Map(opened);
  for (const t of tabs) {
    t.section.hidden = false;
    drawTab(t);
  }
  const more = [...document.querySelectorAll('details.more:not([open])')];
  setAll(true);
  for (const d of more) d.open = true;
  addEventListener(
    'afterprint',
    () => {
      setAll(false);
      opened.clear();
      for (const [id, was] of rowsOpen) opened.set(id, was);
      for (const d of more) d.open = false;
      for (const c of cardsOpen) c.open = true;
      if (before) showTab(before.id);
      drawTree();
    },
    { once: true },
  );
}

// search

function search(query) {
  state.query = query.trim();
  state.terms = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  drawEdits();
  drawTabs();
  drawPosition();
  const edits = report.edits.filter(e => matches(e.hay)).length;
  byId('found').textContent = state.query ? `${plural(edits, 'edit')}, ${plural(tree.filter(r => matches(r.hay)).length, 'node')}` : '';
}

function clearSearch() {
  if (!state.query) return;
  byId('search').value = '';
  search('');
}

// links

function follow() {
  if (chosen() !== number) {
    location.reload();
    return;
  }
  let hash = location.hash.slice(1).replace(/^\d+!/, '');
  try {
    hash = decodeURIComponent(hash);
  } catch {
    /* a name with a percent sign of its own */
  }
  if (!hash) return;
  if (showTab(hash)) {
    showing.button.focus({ preventScroll: true });
    byId('panels').scrollIntoView({ block: 'nearest' });
    return;
  }
  const [kind, ...rest] = hash.split(':');
  if (PLACES[kind]) {
    clearSearch();
    PLACES[kind](rest.join(':'));
    return;
  }
  const edit = report.edits.find(e => `edit-${e.n}` === hash || e.id === hash);
  if (!edit) return;
  clearSearch();
  const card = byId(`card-${edit.n}`);
  setOpen(card, true);
  visit(card);
  card.scrollIntoView({ block: 'start' });
}

/** Links into views: `#path:layers.ffn`, `#wiring:layers.ffn`, `#tensor:layers.{i}.ffn.up.weight`, `#line:head:12:specs/a.yaml`. */
const PLACES = {
  path: name => {
    const row = find(name);
    if (row && showTab('tree')) reveal(row);
  },
  wiring: name => {
    const made = showTab('wiring') && findBox(keyOf(name));
    if (made) arrive(made);
  },
  tensor: name => {
    if (!report.tensors.some(t => keyOf(t.head ?? t.base) === keyOf(name))) return;
    const tab = tabs.find(t => t.id === 'tensors');
    showTab('tensors');
    for (const s of ORDER) chosenKinds.get('tensors').add(s);
    tab.dirty = true;
    drawTab(tab);
    const made = [...tab.section.querySelectorAll('tr[data-tensor]')].find(r => keyOf(r.dataset.tensor) === keyOf(name));
    made.tabIndex = -1;
    arrive(made);
  },
  line: rest => {
    const [side, n, ...name] = rest.split(':');
    const made = ['base', 'head'].includes(side) && findLine(side, name.join(':'), Number(n));
    if (made) arrive(made);
  },
};

/** A path without its copies. */
const keyOf = path =>
  path
    .replace(/\[[^\]]*\]/g, '')
    .split('.')
    .filter(p => !/^\d+$/.test(p) && p !== '{i}')
    .join('.');

/** The row of a path (`layers.attention`, `layers.3.attention` or `layers[0..11].attention`), or of the nearest path above it. */
function find(path) {
  let key = keyOf(path);
  const copies = path.match(/\[[^\]]*\]$/)?.[0];
  for (;;) {
    const near = tree.filter(r => r.k === key);
    const body = near.find(r => r.names.includes(copies));
    const nodes = near.filter(r => !r.names[0].startsWith('['));
    const row = body || nodes.find(r => r.e.length) || nodes.find(touched) || nodes[0] || near[0];
    if (row || !key.includes('.')) return row;
    key = key.slice(0, key.lastIndexOf('.'));
  }
}
