// Pieces that the rest is made of. All text goes in as text nodes: nothing that a spec says is ever parsed as markup.

const all = JSON.parse(document.getElementById('report').textContent);
const chosen = () => Math.min(Math.max(Number(location.hash.match(/^#(\d+)!/)?.[1] ?? 1), 1), all.reports.length);
const number = chosen(); // which comparison shows, from 1: `#2!edit-3` is an edit of the second
const report = all.reports[number - 1];
const anchor = fragment => `#${number > 1 ? `${number}!` : ''}${fragment}`;
const byId = id => document.getElementById(id);
const state = { terms: [], query: '' };

/** An element; `attributes` with a function are listeners, and children that are null or false are left out. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false && c !== ''));
  return made;
}

const SHAPES = {
  ok: 'M4 12.5 9.5 18 20 6.5',
  note: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18ZM12 11v6M12 7.2v.1',
  warn: 'M12 3.5 22 20.5H2ZM12 10v4.5M12 17.4v.1',
  bad: 'M8 2.5h8l5.5 5.5v8L16 21.5H8L2.5 16V8ZM8.5 8.5l7 7M15.5 8.5l-7 7',
  up: 'M5 15l7-7 7 7',
  down: 'M5 9l7 7 7-7',
  wide: 'M9 6 3 12l6 6M15 6l6 6-6 6M3 12h18',
  theme: 'M12 3a9 9 0 1 0 0 18ZM12 3a9 9 0 0 1 0 18',
};
const TONES = { breaking: 'bad', warning: 'warn', info: 'note' };

function icon(name) {
  const space = 'http://www.w3.org/2000/svg';
  const made = document.createElementNS(space, 'svg');
  for (const [key, value] of Object.entries({ viewBox: '0 0 24 24', class: 'icon', 'aria-hidden': 'true' })) made.setAttribute(key, value);
  const path = document.createElementNS(space, 'path');
  path.setAttribute('d', SHAPES[name]);
  made.append(path);
  return made;
}

/** Text of a spec: apart from the text around it, and with what was searched for marked. */
function text(content, className = '', name = 'span') {
  return el(name, { class: `text ${className}`.trim(), dir: 'auto' }, marked(content));
}

function marked(content) {
  const low = content.toLowerCase();
  const parts = [];
  let at = 0;
  while (state.terms.length && at < content.length) {
    const hits = state.terms.map(t => [low.indexOf(t, at), t.length]).filter(([k]) => k >= 0);
    if (!hits.length) break;
    const [start, length] = hits.reduce((a, b) => (b[0] < a[0] ? b : a));
    parts.push(content.slice(at, start), el('mark', {}, content.slice(start, start + length)));
    at = start + length;
  }
  parts.push(content.slice(at));
  return parts.filter(p => p !== '');
}

/** A note in words, its names in backticks as code. */
const prose = content =>
  el(
    'span',
    { class: 'text', dir: 'auto' },
    content.split(/`([^`]+)`/).map((part, k) => (k % 2 ? el('code', {}, marked(part)) : marked(part))),
  );

/** A path, which may break after a dot that is not inside of its copies (`{0..11}`). */
const path = content =>
  el(
    'span',
    { class: 'path', dir: 'auto' },
    content.split(/(?<=\.)(?![^{[]*[}\]])/).map(part => [marked(part), el('wbr')]),
  );

const hidden = content => el('span', { class: 'hidden' }, content);
const matches = hay => state.terms.every(t => hay.includes(t));
const plural = (n, word) => `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`;

/** `before → after`; a side that is not there is left out, or called none. */
function values(before, after, short = false, none = false) {
  if (before === null && after === null) return [];
  const cut = t => (short && t.length > 160 ? `${t.slice(0, 160)}…` : t);
  return [
    before === null && none && el('span', { class: 'muted' }, 'none'),
    before !== null && el('del', { dir: 'auto' }, hidden('from '), marked(cut(before))),
    ((before !== null && after !== null) || none) && el('span', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
    after !== null && el('ins', { dir: 'auto' }, hidden(before === null ? 'now ' : ' to '), marked(cut(after))),
    after === null && none && el('span', { class: 'muted' }, 'none'),
  ];
}

function badge(tone, content, shape = tone) {
  return el('span', { class: `badge ${tone}` }, shape && icon(shape), content);
}

const link = where => el('a', { href: anchor(`path:${encodeURIComponent(where)}`), class: 'mono' }, text(where));
