// Tables: costs, tensors, and those of other layers. A table is columns of (name, kind) and rows of cells.

const statusCell = s => el('span', { class: 'status' }, el('i', { class: s.replace(/ /g, '-') }), s);
const tone = d => (d > 0 ? 'up' : d < 0 ? 'down' : 'zero');
const toned = (d, ...content) => el('span', { class: tone(d) }, content);
const amount = ([said, exact]) =>
  el('span', { title: exact || null }, broken(said.replaceAll(' ', '\u00a0'), ','), exact && el('small', {}, exact));

/** What a cell of a kind is made into; a cell that is an element stands for itself. */
const CELLS = {
  text: v => text(v),
  code: v => text(v, '', 'code'),
  path: v => path(v),
  prose: v => prose(v),
  status: statusCell,
  level: v => badge(TONES[v], v),
  change: ([a, b]) => (a === b ? text(a, 'mono') : values(a, b, false, true)),
  list: v => v.map(t => el('div', {}, prose(t))),
  amount,
  number: v => (typeof v === 'number' ? v.toLocaleString('en') : v),
  delta: v => toned(v, v === 0 ? '0' : `${v > 0 ? '+' : '−'}${Math.abs(v).toLocaleString('en')}`),
};
const RIGHT = ['amount', 'number', 'delta'];
const WRAPPED = ['path', 'prose', 'change', 'list'];

const blank = cell => cell === null || cell === '' || (Array.isArray(cell) && cell.length === 0);

/** Columns in which nothing stands are left out. Rows are lists of cells, or `{ cells, ...attributes }`. */
function table(label, allColumns, allRows) {
  const lists = allRows.map(r => (Array.isArray(r) ? { cells: r } : r));
  const used = allColumns.map((c, k) => k === 0 || !lists.length || lists.some(r => !blank(r.cells[k])));
  const columns = allColumns.filter((c, k) => used[k]);
  const rows = lists.map(r => ({ ...r, cells: r.cells.filter((c, k) => used[k]) }));
  const classes = columns.map(([, kind]) => [!RIGHT.includes(kind) && 'start', WRAPPED.includes(kind) && 'wrap'].filter(Boolean).join(' '));
  const heads = columns.map(([name], k) => (name ? el('th', { scope: 'col', class: classes[k] || null }, name) : el('td')));
  const made = (cell, k) => {
    const content = cell instanceof Node ? cell : blank(cell) ? '' : CELLS[columns[k][1]](cell);
    return el(k ? 'td' : 'th', { scope: k ? null : 'row', class: classes[k] || null }, content);
  };
  const row = ({ cells, ...attributes }) => el('tr', attributes, cells.map(made));
  const whole = el('table', {}, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, rows.map(row)));
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label }, whole);
}

/** Text that may break after a sign too. */
const broken = (content, after) =>
  el(
    'span',
    { class: 'words' },
    content.split(after).map((part, k, all) => [part + (k < all.length - 1 ? after : ''), el('wbr')]),
  );

const titled = (name, ...more) => el('div', { class: 'title' }, el('h2', {}, name), more);

// costs

function drawCosts() {
  const most = Math.max(1, ...report.metrics.map(m => Math.min(Math.abs(m.percent || 0), 100)));
  const gauge = m => {
    const bar = el('i', { class: tone(m.delta) });
    bar.style.width = `${(Math.min(Math.abs(m.percent || 0), 100) / most) * 50}%`;
    return Boolean(m.delta) && m.percent !== null && el('span', { class: 'gauge', 'aria-hidden': 'true' }, bar);
  };
  const columns = [
    ['', 'text'],
    ['Before', 'amount'],
    ['After', 'amount'],
    ['Delta', 'amount'],
    ['Change', 'number'],
  ];
  const rows = report.metrics.map(m => ({
    'data-metric': m.key,
    cells: [
      broken(m.name, '.'),
      m.before,
      m.after,
      toned(m.delta, amount(m.deltaText)),
      el('span', {}, toned(m.delta, m.percentText || '0'), gauge(m)),
    ],
  }));
  const sizes = report.sizes && el('span', { class: 'muted' }, `at ${report.sizes}`);
  const long = report.metrics.some(m => [m.before, m.after, m.deltaText].some(a => Math.max(...a.map(t => t.length)) > 14));
  byId('costs').classList.toggle('dense', long);
  byId('costs').hidden = !rows.length;
  byId('costs').replaceChildren(titled('Costs', sizes), table('Costs', columns, rows), byEdit());
}

/** What each edit adds: the columns sum to the deltas. */
function byEdit() {
  const shown = report.metrics.filter(m => m.delta !== null && report.edits.some(e => e.deltas.some(d => d.key === m.key && d.delta)));
  if (!shown.length || report.edits.length < 2) return '';
  const columns = [['Edit', 'text'], ...shown.map(m => [m.name, 'amount'])];
  const cells = (deltas, said) =>
    shown.map(m => {
      const d = deltas.find(x => x.key === m.key);
      return d ? toned(d.delta, said(d)[0]) : '';
    });
  const name = e => el('a', { href: anchor(`edit-${e.n}`) }, text(`${e.n} ${e.title}`, 'clip'));
  const rows = report.edits.map(e => [name(e), ...cells(e.deltas, d => d.text)]);
  rows.push({ class: 'total', cells: ['All', ...cells(shown, m => m.deltaText)] });
  return el('details', { class: 'more' }, el('summary', {}, 'Costs by edit, in this order'), table('Costs by edit', columns, rows));
}

// tensors

const TENSORS = [
  ['What', 'status'],
  ['Tensor', 'path'],
  ['Shape', 'change'],
  ['Count', 'number'],
  ['Numbers', 'number'],
];

function tensorRow(t) {
  const one = t.base === t.head || t.base === null || t.head === null;
  const name = one ? (t.head ?? t.base) : el('span', {}, values(t.base, t.head));
  const shape = t.before === null || t.after === null ? [t.before ?? t.after, t.before ?? t.after] : [t.before, t.after];
  return { 'data-tensor': t.head ?? t.base, cells: [t.status, name, shape, `× ${t.count.toLocaleString('en')}`, t.elements] };
}

const tensorTable = tensors => table('Tensors', TENSORS, tensors.map(tensorRow));

function counted(tensors) {
  const by = new Map();
  for (const t of tensors) by.set(t.status, (by.get(t.status) || 0) + t.count);
  return [...by].map(([s, n]) => `${n.toLocaleString('en')} ${s}`).join(', ');
}

const ORDER = [
  'silent',
  'refused',
  'wrong',
  'missing',
  'unexpected',
  'renamed',
  'reshaped',
  'other-dtype',
  'exact',
  'approx',
  'new',
  'dropped',
  'kept',
  'same',
  'as-is',
];
const chosenKinds = new Map(); // of a table, the kinds of rows that show

/** A table with a button for each kind of row. Items are `{ kind, count, hay, row }`; those of `quiet` kinds show when asked for. */
function kindsTable(id, title, columns, items, quiet) {
  const there = ORDER.filter(s => items.some(t => t.kind === s));
  if (!chosenKinds.has(id)) chosenKinds.set(id, new Set(there.filter(s => !quiet.includes(s))));
  const kinds = chosenKinds.get(id);
  const holder = el('div', { class: 'kinds' });
  const draw = () => {
    const shown = items.filter(t => (kinds.has(t.kind) || !there.includes(t.kind)) && matches(t.hay));
    const button = s => {
      const click = () => {
        if (!kinds.delete(s)) kinds.add(s);
        draw();
        holder.querySelector(`[data-kind="${s}"]`).focus();
      };
      const n = items.filter(t => t.kind === s).reduce((sum, t) => sum + t.count, 0);
      const attributes = { type: 'button', 'aria-pressed': String(kinds.has(s)), 'data-kind': s, click };
      return el('button', attributes, el('i', { class: s }), `${s} ${n.toLocaleString('en')}`);
    };
    const filters = there.length > 0 && el('div', { class: 'filters', role: 'group', 'aria-label': 'Kinds to show' }, there.map(button));
    const none = state.query ? 'No row of these kinds matches.' : 'Nothing of the other kinds. Choose a kind above to list its rows.';
    holder.replaceChildren(
      titled(title, filters),
      shown.length
        ? table(
            title,
            columns,
            shown.map(t => t.row),
          )
        : el('p', { class: 'empty' }, none),
    );
  };
  draw();
  return holder;
}

function drawTensors(section) {
  const items = report.tensors.map(t => ({ kind: t.status, count: t.count, hay: t.hay, row: tensorRow(t) }));
  section.replaceChildren(el('div', { class: 'view' }, kindsTable('tensors', 'Checkpoint tensors', TENSORS, items, ['kept'])));
}

// other layers

const said = cells => cells.flat().join(' ').toLowerCase();

/** The key map, claims that were run, exported files. */
function drawLayer(layer, section) {
  const tables = layer.tables.map((t, k) => {
    const byKind = t.columns[0][1] === 'status';
    const items = t.rows.map(r => ({ kind: byKind ? r[0] : '', count: 1, hay: said(r), row: r }));
    if (t.quiet.length) return kindsTable(`${layer.id}-${k}`, t.title, t.columns, items, t.quiet);
    const shown = items.filter(i => matches(i.hay)).map(i => i.row);
    return [titled(t.title), shown.length ? table(t.title, t.columns, shown) : el('p', { class: 'empty' }, 'No row matches.')];
  });
  const notes = layer.notes.map(n => el('p', { class: 'muted' }, prose(n)));
  const whole = layer.text && [titled(layer.title), el('pre', { class: 'scroll', tabindex: 0 }, marked(layer.text))];
  section.replaceChildren(el('div', { class: 'view' }, notes, tables, whole));
}
