// The trees of both specs, side by side. Rows are drawn anew for every change of what is folded.

const SIGNS = { same: '', changed: '~', added: '+', removed: '−', moved: '↕', renamed: '»' };
const opened = new Map(); // of a row, whether its inside shows; of a gap, that it is open
let lit = 0; // the edit whose rows are pointed out
let active = ''; // the row that the keyboard is at
const tree = []; // every row, outer before inner

function indexTree(rows, parent, prefix) {
  rows.forEach((row, k) => {
    row.id = `${prefix}${k}`;
    row.parent = parent;
    const sides = [row.s, row.b, row.h].filter(Boolean);
    row.names = sides.map(s => s.n);
    row.hay =
      sides
        .map(s => [s.n, s.w, s.at, ...s.a.map(a => a.join('='))].join(' '))
        .join(' ')
        .toLowerCase() + ` ${row.k.toLowerCase()}`;
    tree.push(row);
    indexTree(row.c, row, `${row.id}.`);
  });
}

const touched = row => row.m !== 'same';
const quiet = row => !touched(row) && row.d === 0 && !row.pinned;
const isOpen = row => (opened.has(row.id) ? opened.get(row.id) : row.d > 0 && !['added', 'removed', 'moved'].includes(row.m));

function drawTree(section = byId('tree')) {
  if (!tree.length) return;
  const label = (side, name) => `${name}: ${side ? side.label : 'nothing'}`;
  const body = el('div', { role: 'rowgroup' });
  const shown = state.query ? findRows() : null;
  drawRows(report.tree, 1, body, shown);
  if (!body.children.length) body.append(el('p', { class: 'empty' }, 'No node matches.'));
  const scrolled = section.querySelector('.tree')?.scrollTop || 0;
  const grid = el(
    'div',
    { class: `tree view ${report.base && report.head ? '' : 'alone'}`, role: 'treegrid', 'aria-label': 'Architecture', 'aria-colcount': 2 },
    el(
      'div',
      { role: 'rowgroup', class: 'top' },
      el(
        'div',
        { class: 'row heads', role: 'row' },
        report.base && el('div', { class: 'cell', role: 'columnheader' }, text(label(report.base, 'Base'))),
        report.head && el('div', { class: 'cell', role: 'columnheader' }, text(label(report.head, 'Head'))),
      ),
    ),
    body,
  );
  const legend = Object.entries(SIGNS)
    .filter(([m]) => report.base && report.head && tree.some(r => r.m === m && m !== 'same'))
    .map(([m, s]) => el('span', {}, el('b', { class: m }, s), m));
  section.replaceChildren(titled('Architecture', el('div', { class: 'legend' }, legend)), grid);
  grid.scrollTop = scrolled;
  const rows = [...grid.querySelectorAll('[tabindex]')];
  const at = rows.find(r => r.id === active) || rows[0];
  if (at) at.tabIndex = 0;
}

/** The rows that match, and those around them. */
function findRows() {
  const shown = new Set();
  for (const row of tree) {
    if (!matches(row.hay)) continue;
    for (let r = row; r; r = r.parent) shown.add(r.id);
  }
  return shown;
}

function drawRows(rows, level, body, shown) {
  const changed = report.tree.some(r => !quiet(r));
  for (let k = 0; k < rows.length; k++) {
    const row = rows[k];
    if (shown) {
      if (!shown.has(row.id)) continue;
    } else if (changed && quiet(row)) {
      let stop = k;
      while (stop < rows.length && quiet(rows[stop])) stop++;
      const gap = `gap-${row.id}`;
      if (stop - k > 1 && !opened.get(gap)) {
        body.append(gapRow(rows.slice(k, stop), gap, level));
        k = stop - 1;
        continue;
      }
      for (; k < stop; k++) drawRow(rows[k], level, body, shown);
      k--;
      continue;
    }
    drawRow(row, level, body, shown);
  }
}

function gapRow(rows, gap, level) {
  const names = rows.map(r => r.s?.n || (r.h || r.b).n).join(', ');
  const made = el(
    'div',
    {
      role: 'row',
      class: 'gaprow',
      id: gap,
      'aria-level': level,
      'aria-expanded': 'false',
      tabindex: -1,
      'data-gap': gap,
      click: () => {
        opened.set(gap, true);
        active = `row-${rows[0].id}`;
        drawTree();
        byId(active)?.focus();
      },
    },
    el('div', { role: 'gridcell', 'aria-colspan': 2, class: 'gap' }, `⋯ ${rows.length} unchanged: `, text(names)),
  );
  made.style.setProperty('--level', level - 1);
  return made;
}

function drawRow(row, level, body, shown) {
  const inside = row.c.length > 0;
  const open = inside && (shown ? row.c.some(c => shown.has(c.id)) : isOpen(row));
  const classes = ['row', row.m, row.m === 'changed' && !row.e.length && 'follows', inside && 'expandable', row.e.includes(lit) && 'lit']
    .filter(Boolean)
    .join(' ');
  const made = el(
    'div',
    {
      role: 'row',
      class: classes,
      id: `row-${row.id}`,
      'aria-level': level,
      'aria-expanded': inside ? String(open) : null,
      tabindex: -1,
      'data-key': row.k,
      'data-edits': row.e.join(' ') || null,
      click: event => {
        if (event.target.closest('a') || String(getSelection())) return;
        toggle(row, !open);
      },
    },
    cell(row, 'base', open),
    cell(row, 'head', open),
  );
  made.style.setProperty('--level', level - 1);
  body.append(made);
  if (open) drawRows(row.c, level + 1, body, shown);
}

function toggle(row, open) {
  active = `row-${row.id}`;
  if (row.c.length) opened.set(row.id, open);
  drawTree();
  byId(active)?.focus();
}

function cell(row, which, open) {
  const side = row.s || (which === 'base' ? row.b : row.h);
  const other = row.s || (which === 'base' ? row.h : row.b);
  if (!side) return el('div', { role: 'gridcell', class: `cell none ${which}` }, hidden('not there'));
  const last = which === 'head' || !other;
  const sign = row.m === 'changed' || row.m === 'renamed' || last ? SIGNS[row.m] : '';
  return el(
    'div',
    { role: 'gridcell', class: `cell ${which}`, title: side.at },
    el('span', { class: 'twist', 'aria-hidden': 'true' }, row.c.length ? (open ? '▾' : '▸') : ''),
    el('span', { class: 'sign', 'aria-hidden': 'true' }, sign),
    el(
      'span',
      { class: 'main' },
      touched(row) && hidden(row.m),
      differing(side.n, other?.n, which, 'name clip'),
      differing(side.w, other?.w, which, 'what'),
      side.s && differing(side.s, other?.s, which, 'shape'),
      side.a.map(([k, v]) => attribute(k, v, other && other.a, which, 'attribute', '=')),
      other && other !== side && side.r.map(([k, v]) => attribute(k, v, other.r, which, 'reads', ' ← ')).filter(Boolean),
    ),
    el(
      'span',
      { class: 'tail' },
      last && row.d > 0 && !open && touchedInside(row) && el('span', { class: 'inside' }, `${plural(row.d, 'change')} inside`),
      last && row.e.map(n => el('a', { class: 'chip', href: anchor(`edit-${n}`), 'aria-label': `edit ${n}`, tabindex: -1 }, `#${n}`)),
      side.p && el('span', { title: 'parameters' }, side.p),
    ),
  );
}

const touchedInside = row => !['added', 'removed', 'moved'].includes(row.m);

/** A word of one side, marked where the other side says another. */
function differing(content, other, which, className) {
  if (other === undefined || other === content) return text(content, className);
  return el('span', { class: `dash ${className}` }, el(which === 'base' ? 'del' : 'ins', { dir: 'auto' }, marked(content)));
}

function attribute(key, value, others, which, className, between) {
  const other = others && others.find(([k]) => k === key);
  if (className === 'reads' && other && other[1] === value) return null;
  const said = `${key}${between}${value}`;
  if (!others || (other && other[1] === value)) return text(said, className);
  return el('span', { class: `dash ${className}` }, el(which === 'base' ? 'del' : 'ins', { dir: 'auto' }, marked(said)));
}

/** Opens everything around a row, and goes there. */
function reveal(row) {
  for (let r = row.parent; r; r = r.parent) opened.set(r.id, true);
  for (let r = row; r; r = r.parent) r.pinned = true;
  drawTree();
  const made = byId(`row-${row.id}`);
  if (!made) return null;
  active = made.id;
  made.tabIndex = 0;
  arrive(made);
  return made;
}

/** Arrows, Home, End, Enter in the tree. */
function treeKey(event) {
  const made = event.target.closest('.tree [tabindex]');
  if (!made || event.target.closest('a')) return false;
  const rows = [...made.closest('.tree').querySelectorAll('[role="row"][tabindex]')];
  const k = rows.indexOf(made);
  const row = tree.find(r => `row-${r.id}` === made.id);
  const go = to => {
    if (to) {
      made.tabIndex = -1;
      to.tabIndex = 0;
      active = to.id;
      to.focus();
    }
  };
  const open = made.getAttribute('aria-expanded') === 'true';
  const acts = {
    ArrowDown: () => go(rows[k + 1]),
    ArrowUp: () => go(rows[k - 1]),
    Home: () => go(rows[0]),
    End: () => go(rows[rows.length - 1]),
    ArrowRight: () => (!row ? made.click() : row.c.length && !open ? toggle(row, true) : go(rows[k + 1])),
    ArrowLeft: () => (row && open ? toggle(row, false) : row && row.parent && go(byId(`row-${row.parent.id}`))),
    Enter: () => (row ? row.c.length && toggle(row, !open) : made.click()),
    ' ': () => (row ? row.c.length && toggle(row, !open) : made.click()),
  };
  if (!acts[event.key]) return false;
  acts[event.key]();
  return true;
}
