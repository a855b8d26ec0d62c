// The files that the specs are written in, line by line. What they say is data: it goes in as text nodes.

const AROUND = 3; // unchanged lines that show around a change
const WORDS = /"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|(?:^|(?<=\s))#.*$|[\w./-]+(?=\s*:(?:\s|$))/g;
const unfolded = new Set(); // runs of unchanged lines that were opened

function indexSources() {
  report.sources?.files.forEach((file, f) => {
    file.id = f;
    for (const line of file.lines) line.hay = line[3].join('').toLowerCase();
  });
}

const lineMatches = line => line[0] !== '' && matches(line.hay);

function drawSources(section) {
  const { files, same } = report.sources;
  const plus = files.flatMap(f => f.lines).filter(l => l[0] === '+').length;
  const minus = files.flatMap(f => f.lines).filter(l => l[0] === '-').length;
  section.replaceChildren(
    titled(
      'YAML',
      el(
        'span',
        { class: 'legend' },
        el('span', {}, el('b', { class: 'added' }, '+'), plural(plus, 'line')),
        el('span', {}, el('b', { class: 'removed' }, '−'), plural(minus, 'line')),
      ),
    ),
    el(
      'div',
      { class: 'view' },
      files.map(fileView),
      same.length > 0 &&
        el(
          'p',
          { class: 'muted' },
          `${plural(same.length, 'more file')} without a change: `,
          same.map((n, k) => [k ? ', ' : '', text(n, 'mono')]),
        ),
    ),
  );
  mark(current);
}

function fileView(file) {
  const names = file.base === file.head || !file.base || !file.head ? text(file.head || file.base, 'mono') : values(file.base, file.head);
  const came = !file.base && report.base ? badge('note', 'new file', '') : !file.head && report.head ? badge('warn', 'removed', '') : '';
  const rows = [];
  let before = '=';
  for (const [from, to] of runs(file)) {
    if (to - from > 0 && folds(file, from, to)) {
      rows.push(foldRow(file, from, to));
      before = '=';
      continue;
    }
    for (let k = from; k < to; k++) {
      rows.push(lineRow(file, file.lines[k], '+-'.includes(file.lines[k][0]) && before === '='));
      before = file.lines[k][0];
    }
  }
  const code = el('div', { class: 'code', role: 'table', 'aria-label': `Lines of ${file.head || file.base}` }, rows);
  return el('article', { class: 'file' }, el('header', {}, el('h3', {}, names), came), code);
}

/** The lines in runs: those near a change or found by the search, and those between, in turn. */
function runs(file) {
  const lines = file.lines;
  const near = new Uint8Array(lines.length);
  lines.forEach((line, k) => {
    const wanted = state.query ? lineMatches(line) : line[0] !== '=';
    if (wanted) near.fill(1, Math.max(k - AROUND, 0), k + AROUND + 1);
  });
  const out = [];
  for (let from = 0, k = 1; k <= lines.length; k++) {
    if (k === lines.length || near[k] !== near[from]) {
      out.push([from, k]);
      from = k;
    }
  }
  return out.filter(([a, b]) => b > a);
}

function folds(file, from, to) {
  if (to - from < 3 || unfolded.has(`${file.id}-${from}`)) return false;
  return file.lines.slice(from, to).every(l => (state.query ? !lineMatches(l) : l[0] === '='));
}

function foldRow(file, from, to) {
  const click = () => {
    unfolded.add(`${file.id}-${from}`);
    tabs.find(t => t.id === 'yaml').dirty = true;
    drawTab(showing);
    document.querySelector(`[data-line="${file.id}-${from}"]`)?.focus();
  };
  const what = state.query ? 'other' : 'unchanged';
  return el(
    'div',
    { role: 'row', class: 'foldrow' },
    el('button', { type: 'button', role: 'cell', click }, `⋯ ${to - from} ${what} lines`),
  );
}

function lineRow(file, line, first) {
  const [sign, a, b, pieces, edits] = line;
  const name = { '=': 'same', '+': 'added', '-': 'removed', '': 'cut' }[sign];
  return el(
    'div',
    {
      role: 'row',
      class: `line ${name} ${first ? 'hunk' : ''}`,
      tabindex: -1,
      'data-line': `${file.id}-${file.lines.indexOf(line)}`,
      'data-edits': edits.join(' ') || null,
    },
    el('span', { role: 'cell', class: 'no' }, a ?? ''),
    el('span', { role: 'cell', class: 'no' }, b ?? ''),
    el(
      'span',
      { role: 'cell', class: 'sign' },
      el('span', { 'aria-hidden': 'true' }, { '+': '+', '-': '−' }[sign] || ''),
      sign !== '=' && hidden(name),
    ),
    el('code', { role: 'cell', class: 'text', dir: 'ltr' }, coloured(pieces)),
    el(
      'span',
      { role: 'cell', class: 'chips' },
      edits.map(n => el('a', { class: 'chip', href: anchor(`edit-${n}`), 'aria-label': `edit ${n}` }, `#${n}`)),
    ),
  );
}

/** Pieces of a line, every second one marked; keys, comments and quoted words have colours of their own. */
function coloured(pieces) {
  const whole = pieces.join('');
  const spans =
    whole.length > 1000
      ? []
      : [...whole.matchAll(WORDS)].map(m => [
          m.index,
          m.index + m[0].length,
          { '#': 'comment', '"': 'quoted', "'": 'quoted' }[m[0][0]] || 'key',
        ]);
  let at = 0;
  return pieces.map((piece, k) => {
    const parts = [];
    const [start, stop] = [at, at + piece.length];
    for (let x = start; x < stop;) {
      const span = spans.find(([, end]) => end > x);
      const inside = span && span[0] <= x;
      const to = Math.min(stop, !span ? stop : inside ? span[1] : span[0]);
      const content = marked(whole.slice(x, to));
      parts.push(inside ? el('span', { class: span[2] }, content) : content);
      x = to;
    }
    at = stop;
    return k % 2 ? el('b', {}, parts) : parts;
  });
}

/** The line of a file of one side, shown; null where it is not among the files. */
function findLine(side, name, n) {
  const file = report.sources?.files.find(f => f[side] === name);
  const k = file ? file.lines.findIndex(l => l[side === 'base' ? 1 : 2] === n) : -1;
  if (k < 0) return null;
  showTab('yaml');
  for (const [from, to] of runs(file)) if (from <= k && k < to) unfolded.add(`${file.id}-${from}`);
  showing.dirty = true;
  drawTab(showing);
  return document.querySelector(`[data-line="${file.id}-${k}"]`);
}

/** A place in a file as a link, where the file is shown. */
function placeLink(side, [name, n]) {
  const there = report.sources?.files.some(f => f[side] === name);
  const made = el(side === 'base' ? 'del' : 'ins', {}, `${name}:${n}`);
  return there ? el('a', { href: anchor(`line:${side}:${n}:${encodeURIComponent(name)}`) }, made) : made;
}
