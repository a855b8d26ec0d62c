// What is wired to what. Python says where boxes and wires go; both sides are one picture, or the same picture twice.

const SPACE = 'http://www.w3.org/2000/svg';
const EDGE = 12; // around a drawing
let together = true; // both sides in one picture

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) made.setAttribute(key, value);
  made.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false && c !== ''));
  return made;
}

function indexWiring() {
  const alone = !report.base || !report.head; // nothing to compare with: the picture of what is there
  for (const d of report.wiring.drawings) {
    for (const x of alone ? [...d.boxes, ...d.wires] : []) {
      x.m = 'same';
      x.lines = x.lines?.map(([a, b]) => [a ?? b, a ?? b]);
    }
    d.boxes.forEach(b => {
      b.hay = [...b.lines.flat(), b.k, SIGNS[b.m] && b.m].filter(Boolean).join(' ').toLowerCase();
    });
    d.hay = [d.place, ...d.what, ...d.others, ...d.boxes.map(b => b.hay)].join(' ').toLowerCase();
  }
}

function drawWiring(section) {
  const modes = [
    ['One picture', true],
    ['Side by side', false],
  ].map(([name, value]) =>
    el('button', { type: 'button', 'aria-pressed': String(together === value), click: () => setTogether(value) }, name),
  );
  const legend = ['changed', 'added', 'removed', 'moved', 'renamed']
    .filter(m => report.wiring.drawings.some(d => [...d.boxes, ...d.wires].some(x => x.m === m)))
    .map(m => el('span', {}, el('b', { class: m }, SIGNS[m]), m));
  const shown = report.wiring.drawings.filter(d => matches(d.hay) || d.boxes.some(b => matches(b.hay)));
  const more = report.wiring.more;
  section.replaceChildren(
    titled(
      'Wiring',
      el('div', { class: 'legend' }, legend),
      report.base && report.head && el('div', { class: 'group modes', role: 'group', 'aria-label': 'Sides' }, modes),
    ),
    el(
      'div',
      { class: 'view drawings' },
      shown.map(drawing),
      shown.length === 0 && el('p', { class: 'empty' }, 'No drawing matches.'),
      more > 0 &&
        el('p', { class: 'muted' }, `${plural(more, 'more region')} changed; there is no room to draw all. The architecture shows them.`),
    ),
  );
  mark(current);
}

function setTogether(value) {
  together = value;
  const tab = tabs.find(t => t.id === 'wiring');
  if (!tab) return;
  const pressed = document.activeElement?.closest('.modes');
  tab.dirty = true;
  if (showing !== tab) showTab('wiring');
  else drawTab(tab);
  if (pressed) tab.section.querySelector('.modes [aria-pressed="true"]').focus({ preventScroll: true });
}

function drawing(d) {
  const [base, head] = d.what;
  const sides = together || !report.base || !report.head ? ['both'] : ['base', 'head'];
  const changed = d.wires.filter(w => w.m !== 'same');
  const heading = el(
    'header',
    {},
    el('h3', {}, d.place === 'the model' ? 'The model' : link(d.place)),
    (base || head) && el('span', { class: 'muted mono' }, base === head || !base || !head ? text(head || base) : values(base, head)),
    d.others.length > 0 &&
      el(
        'span',
        { class: 'muted' },
        'and the same in ',
        d.others.map((p, k) => [k ? ', ' : '', link(p)]),
      ),
  );
  const left = d.left > 0 && el('p', { class: 'muted' }, `${plural(d.left, 'more node')} left out: a drawing has no room for all.`);
  const wires = el(
    'ul',
    { class: 'wires' },
    changed.map(w => el('li', {}, el('b', { class: w.m, 'aria-hidden': 'true' }, SIGNS[w.m]), el('span', {}, wireText(d, w)))),
  );
  const list =
    changed.length > 0 && el('details', { class: 'more' }, el('summary', {}, `${plural(changed.length, 'wire')} changed`), wires);
  const pictures = el(
    'div',
    { class: `pictures ${sides.length > 1 ? 'two' : ''}` },
    sides.map(side => picture(d, side)),
  );
  const made = el('article', { class: 'drawing', 'data-place': d.place }, heading, pictures, left, list);
  made.style.flex = `${d.size[0]} 1 ${Math.min(sides.length * (d.size[0] + 90), 2000)}px`;
  return made;
}

const boxName = b => (b.lines[0][1] ?? b.lines[0][0]).replace(/^▸ /, '');
function wireText(d, w) {
  const port = w.ports[1] || w.ports[0];
  return [
    w.m === 'added' ? 'added: ' : 'removed: ',
    text(boxName(d.boxes[w.from]), '', 'code'),
    ' → ',
    text(boxName(d.boxes[w.to]) + (port && port !== 'in' ? `.${port}` : ''), '', 'code'),
  ];
}

function picture(d, side) {
  const lacks = { base: 'added', head: 'removed' }[side];
  const [w, h] = d.size.map(x => x + 2 * EDGE);
  const name = { both: 'both sides', base: 'base', head: 'head' }[side];
  const made = svg(
    'svg',
    { viewBox: `${-EDGE} ${-EDGE} ${w} ${h}`, width: w, height: h, role: 'group', 'aria-label': `${d.place}: ${name}` },
    d.wires.filter(x => x.m !== lacks).map(x => wire(x)),
    d.boxes.filter(x => x.m !== lacks).map(x => box(x, side)),
    d.wires.filter(x => x.m !== lacks && x.m !== 'same').map(x => sign(x)),
  );
  made.style.minWidth = `${Math.min(w, Math.max(w * 0.7, 240))}px`;
  const caption = side !== 'both' && el('figcaption', {}, text(report[side].label));
  return el('figure', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Wiring of ${d.place}, ${name}` }, caption, made);
}

/** A way through its points: straight in each pair, and a curve to the next. */
function wire(w) {
  let way = '';
  w.d.forEach(([x, y], k) => {
    if (k === 0) way = `M${x} ${y}`;
    else if (k % 2) way += `L${x} ${y - (k === w.d.length - 1 ? 3 : 0)}`;
    else {
      const [a, b] = w.d[k - 1];
      const half = (y - b) / 2;
      way += `C${a} ${b + half} ${x} ${y - half} ${x} ${y}`;
    }
  });
  const [x, y] = w.d.at(-1);
  return svg(
    'g',
    { class: `wire ${w.m}` },
    svg('path', { d: way }),
    svg('path', { class: 'tip', d: `M${x - 4.5} ${y - 8}L${x} ${y - 0.5}L${x + 4.5} ${y - 8}Z` }),
  );
}

/** What became of a wire, in the middle of it. */
function sign(w) {
  const k = Math.floor(w.d.length / 4) * 2;
  const [[a, b], [c, d]] = w.d.length % 4 === 0 ? [w.d[k - 1], w.d[k]] : [w.d[k], w.d[k + 1]];
  const at = { transform: `translate(${(a + c) / 2} ${(b + d) / 2})`, class: `sign ${w.m}`, 'aria-hidden': 'true' };
  return svg('g', at, svg('circle', { r: 8 }), svg('text', { y: 4.5 }, SIGNS[w.m]));
}

function box(b, side) {
  const [x, y, w, h] = b.at;
  const name = b.lines[0];
  const dim = state.query && !matches(b.hay);
  const classes = ['box', b.kind, b.m, dim && 'dim', state.query && !dim && 'hit'].filter(Boolean).join(' ');
  const spoken = [b.m !== 'same' && `${b.m}: `, b.lines.map(([o, n]) => (o === n || !o || !n ? o || n : `${o} → ${n}`)).join(', ')];
  const parts = [
    svg('title', {}, spoken.filter(Boolean).join('')),
    svg('rect', { width: w, height: h, rx: b.kind === 'node' ? 7 : h / 2 }),
    SIGNS[b.m] && svg('text', { class: 'mark', x: 11, y: 20, 'aria-hidden': 'true' }, SIGNS[b.m]),
    svg('text', { class: 'name', x: SIGNS[b.m] ? 26 : 11, y: 20 }, line(name, side, false)),
    b.lines
      .slice(1)
      .filter(([o, n]) => (side === 'base' ? o : side === 'head' ? n : true) !== null)
      .map((l, k) => svg('text', { x: 11, y: 37 + 17 * k }, line(l, side, b.lines[0][0] !== null && b.lines[0][1] !== null))),
    b.tag && svg('text', { class: 'edits', x: w - 10, y: 20 }, b.tag),
  ];
  const place = { class: classes, transform: `translate(${x} ${y})` };
  if (b.kind !== 'node') return svg('g', place, parts);
  const to = {
    href: anchor(`path:${encodeURIComponent(b.k)}`),
    'data-key': b.k,
    'data-edits': b.e.join(' '),
    'aria-label': spoken.filter(Boolean).join(''),
  };
  return svg('a', { ...place, ...to, tabindex: b.m === 'same' ? -1 : 0 }, parts);
}

/** A line of a box as one side has it, or as both do. */
function line([old, now], side, signed) {
  if (old === now) return svg('tspan', {}, old);
  const piece = (t, name, symbol) => svg('tspan', { class: name }, symbol + t);
  if (side !== 'both') {
    const mine = side === 'base' ? old : now;
    return mine === null ? '' : piece(mine, side === 'base' ? 'old' : 'new', '');
  }
  if (old === null || now === null) return piece(old ?? now, old === null ? 'new' : 'old', !signed ? '' : old === null ? '+ ' : '− ');
  return [piece(old, 'old', ''), svg('tspan', { class: 'to' }, ' → '), piece(now, 'new', '')];
}

/** The box of a path, or of the nearest one above it that is drawn. */
function findBox(key) {
  const drawn = [...byId('wiring').querySelectorAll('a.box')];
  for (let at = key; at; at = at.slice(0, Math.max(at.lastIndexOf('.'), 0))) {
    const made = drawn.find(b => b.dataset.key === at);
    if (made) return made;
  }
  return null;
}
