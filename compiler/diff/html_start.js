// Search, keys, links, and the start.

const KEYS = [
  ['n, j', 'next change'],
  ['p, k', 'previous change'],
  ['/', 'search'],
  ['Enter', 'open or close'],
  ['e, c', 'expand all, collapse all'],
  ['t', 'dark or light'],
  ['←, ↑, →, ↓', 'move in the trees'],
  ['Esc', 'clear the search'],
  ['?', 'this list'],
];
const cards = () => [...document.querySelectorAll('.edit')];
let current = 0; // the edit that the keys are at

function drawHead() {
  const side = (s, name) =>
    s ? text(s.label, name) : el('span', { class: 'muted' }, name === 'old' ? 'nothing (new spec)' : 'nothing (removed)');
  const arrow = el('span', { class: 'arrow', 'aria-label': 'to' }, '→');
  byId('name').replaceChildren(side(report.base, 'old'), arrow, side(report.head, 'new'));
  if (all.reports.length > 1) {
    const label = r => [...new Set([r.base, r.head].filter(Boolean).map(s => s.label))].join(' → ');
    byId('name').append(
      el(
        'select',
        {
          'aria-label': 'Comparison',
          change: event => {
            location.hash = `${event.target.value}!`;
          },
        },
        all.reports.map((r, k) =>
          el(
            'option',
            { value: k + 1, selected: k + 1 === number },
            [k + 1, ' of ', all.reports.length, ': ', label(r), ' · ', r.tally].join(''),
          ),
        ),
      ),
    );
  }
  byId('previous').append(icon('up'));
  byId('next').append(icon('down'));
  byId('theme').append(icon('theme'));
  byId('keys').append(
    el('h2', { id: 'keys-title' }, 'Keys'),
    el(
      'dl',
      {},
      KEYS.map(([k, what]) => [
        el(
          'dt',
          {},
          k.split(', ').map((x, i) => [i ? ' ' : '', el('kbd', {}, x)]),
        ),
        el('dd', {}, what),
      ]),
    ),
    el('form', { method: 'dialog' }, el('button', {}, 'Close')),
  );
  byId('foot').append(
    ...['base', 'head']
      .filter(n => report[n])
      .map(n =>
        el(
          'p',
          {},
          `${n}: `,
          text(`${report[n].name}, ${report[n].facts}`),
          ' · structure ',
          el('code', {}, report[n].structure),
          ' · identity ',
          el('code', {}, report[n].identity),
        ),
      ),
    el('p', { class: 'screen' }, 'Press ', el('kbd', {}, '?'), ' for keys.'),
  );
}

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

/** The next edit, or the next changed row where the trees have the focus. */
function step(by) {
  const made = document.activeElement?.closest('.tree [tabindex]');
  if (made) {
    const rows = [...document.querySelectorAll('.tree [role="row"][tabindex]')];
    const near = (by > 0 ? rows.slice(rows.indexOf(made) + 1) : rows.slice(0, rows.indexOf(made)).reverse()).find(
      r => !r.matches('.same, .gaprow'),
    );
    if (near) {
      made.tabIndex = -1;
      near.tabIndex = 0;
      active = near.id;
      near.focus();
    }
    return;
  }
  const all = cards();
  const at = all.findIndex(c => c.id === `card-${current}`);
  const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  if (!all.length) return;
  visit(all[to]);
  history.replaceState(null, '', anchor(`edit-${current}`));
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

/** All is open on paper, and as before afterwards. */
function openForPrint() {
  const cardsOpen = cards().filter(c => c.open);
  const rowsOpen = new Map(opened);
  const more = [...document.querySelectorAll('details.more:not([open])')];
  setAll(true);
  for (const d of more) d.open = true;
  addEventListener(
    'afterprint',
    () => {
      setAll(false);
      opened.clear();
      for (const [id, open] of rowsOpen) opened.set(id, open);
      for (const d of more) d.open = false;
      for (const c of cardsOpen) c.open = true;
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
  drawTensors();
  drawTree();
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
  if (hash.startsWith('path:')) {
    clearSearch();
    const row = find(hash.slice(5));
    if (row) reveal(row);
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

/** The row of a path (`layers.attention`, `layers.3.attention` or `layers[0..11].attention`), or of the nearest path above it. */
function find(path) {
  let key = path
    .replace(/\[[^\]]*\]/g, '')
    .split('.')
    .filter(p => !/^\d+$/.test(p) && p !== '{i}')
    .join('.');
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

// theme

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  setTheme(dark ? 'light' : 'dark');
  try {
    localStorage.setItem('nnspec-theme', root.dataset.theme);
  } catch {
    /* storage is off: the choice holds for this visit */
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').setAttribute('aria-label', name === 'dark' ? 'Switch to light' : 'Switch to dark');
}

function storedTheme() {
  try {
    return localStorage.getItem('nnspec-theme');
  } catch {
    return null;
  }
}

const ACTS = {
  n: () => step(1),
  j: () => step(1),
  p: () => step(-1),
  k: () => step(-1),
  e: () => setAll(true),
  c: () => setAll(false),
  t: toggleTheme,
  '/': () => {
    byId('search').focus();
    byId('search').select();
  },
  '?': () => byId('keys').showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId('keys').open) return;
  if (event.key === 'Escape' && state.query) {
    clearSearch();
    document.activeElement.blur();
    return;
  }
  if (event.target.matches('input')) return;
  if (treeKey(event)) {
    event.preventDefault();
    return;
  }
  if (ACTS[event.key]) {
    event.preventDefault();
    ACTS[event.key]();
  }
}

function listen() {
  document.addEventListener('keydown', onKey);
  addEventListener('hashchange', follow);
  addEventListener('beforeprint', openForPrint);
  document.addEventListener('click', event => {
    // a link to where the page is already
    const a = event.target.closest('a[href^="#"]');
    if (a && a.getAttribute('href') === location.hash) follow();
  });
  document.addEventListener('focusin', event => {
    const card = event.target.closest?.('.edit');
    if (card && Number(card.id.slice(5)) !== current) {
      current = Number(card.id.slice(5));
      for (const c of cards()) c.classList.toggle('lit', c === card);
      light(current);
      drawPosition();
    }
  });
  byId('search').addEventListener('input', event => search(event.target.value));
  const clicks = {
    previous: () => {
      document.activeElement.blur();
      step(-1);
    },
    next: () => {
      document.activeElement.blur();
      step(1);
    },
    expand: ACTS.e,
    collapse: ACTS.c,
    theme: toggleTheme,
    help: ACTS['?'],
  };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener('click', act);
}

function start() {
  if (!report) {
    byId('verdicts').append(
      el('p', { class: 'empty' }, 'No spec differs.'),
      ...all.failures.map(t => el('p', { class: 'alert bad' }, text(t))),
    );
    return;
  }
  const stored = storedTheme();
  if (stored === 'dark' || stored === 'light') setTheme(stored);
  else byId('theme').setAttribute('aria-label', 'Switch between dark and light');
  for (const e of report.edits) {
    e.hay = [
      e.title,
      e.rule,
      e.what,
      e.level,
      e.before,
      e.after,
      e.checkpoint,
      e.id,
      `#${e.n}`,
      ...e.keys,
      ...e.contracts,
      ...e.where.map(w => w.text),
      ...e.notes,
      ...e.consequences.flatMap(c => [c.rule, c.where, c.before, c.after, c.note]),
      ...e.tensors.flatMap(t => [t.base, t.head]),
    ]
      .join(' ')
      .toLowerCase();
  }
  for (const t of report.tensors) {
    t.hay = [t.base, t.head, t.status].join(' ').toLowerCase();
    if (t.status !== 'kept') statuses.add(t.status);
  }
  indexTree(report.tree, null, '');
  drawHead();
  drawVerdicts();
  drawEdits();
  drawCosts();
  drawTensors();
  drawTree();
  drawLayers();
  drawPosition();
  listen();
  follow();
}

start();
