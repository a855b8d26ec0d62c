// Costs, tensors, and layers of other kinds.

function counted(tensors) {
  const by = new Map();
  for (const t of tensors) by.set(t.status, (by.get(t.status) || 0) + t.count);
  return [...by].map(([s, n]) => `${n.toLocaleString('en')} ${s}`).join(', ');
}

function tensorTable(tensors) {
  return el(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Tensors' },
    el(
      'table',
      {},
      el(
        'thead',
        {},
        el(
          'tr',
          {},
          ['What', 'Tensor', 'Shape', 'Count', 'Numbers'].map((n, k) => el('th', { scope: 'col', class: k < 3 && 'start' }, n)),
        ),
      ),
      el(
        'tbody',
        {},
        tensors.map(t =>
          el(
            'tr',
            {},
            el('th', { scope: 'row' }, el('span', { class: 'status' }, el('i', { class: t.status }), t.status)),
            el(
              'td',
              { class: 'start wrap' },
              t.base === t.head || t.base === null || t.head === null ? path(t.head ?? t.base) : values(t.base, t.head),
            ),
            el('td', { class: 'start' }, t.before === t.after ? text(t.after, 'mono') : values(t.before, t.after)),
            el('td', {}, `× ${t.count.toLocaleString('en')}`),
            el('td', {}, t.elements),
          ),
        ),
      ),
    ),
  );
}

function drawCosts() {
  const most = Math.max(1, ...report.metrics.map(m => Math.min(Math.abs(m.percent || 0), 100)));
  const cell = ([said, exact], tone = '') => el('td', { class: tone }, said, exact && el('small', {}, exact));
  const gauge = m => {
    const made = el('i', { class: m.delta > 0 ? 'up' : 'down' });
    made.style.width = `${(Math.min(Math.abs(m.percent || 0), 100) / most) * 50}%`;
    return m.delta && m.percent !== null && el('span', { class: 'gauge', 'aria-hidden': 'true' }, made);
  };
  const tone = d => (d > 0 ? 'up' : d < 0 ? 'down' : 'zero');
  byId('costs').replaceChildren(
    el(
      'div',
      { class: 'title' },
      el('h2', { id: 'costs-title' }, 'Costs'),
      report.sizes && el('span', { class: 'muted' }, `at ${report.sizes}`),
    ),
    el(
      'div',
      { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Costs' },
      el(
        'table',
        {},
        el(
          'thead',
          {},
          el(
            'tr',
            {},
            ['', 'Before', 'After', 'Delta', 'Change'].map(n => (n ? el('th', { scope: 'col' }, n) : el('td', {}))),
          ),
        ),
        el(
          'tbody',
          {},
          report.metrics.map(m =>
            el(
              'tr',
              { 'data-metric': m.key },
              el('th', { scope: 'row' }, m.name),
              cell(m.before),
              cell(m.after),
              cell(m.deltaText, tone(m.delta)),
              el('td', { class: tone(m.delta) }, m.percentText || '0', gauge(m)),
            ),
          ),
        ),
      ),
    ),
    byEdit(cell, tone),
  );
}

/** What each edit adds: the columns sum to the deltas. */
function byEdit(cell, tone) {
  const shown = report.metrics.filter(m => m.delta !== null && report.edits.some(e => e.deltas.some(d => d.key === m.key && d.delta)));
  if (!shown.length || report.edits.length < 2) return '';
  return el(
    'details',
    { class: 'more' },
    el('summary', {}, 'Costs by edit, in this order'),
    el(
      'div',
      { class: 'scroll' },
      el(
        'table',
        {},
        el(
          'thead',
          {},
          el(
            'tr',
            {},
            el('th', { scope: 'col' }, 'Edit'),
            shown.map(m => el('th', { scope: 'col' }, m.name)),
          ),
        ),
        el(
          'tbody',
          {},
          report.edits.map(e =>
            el(
              'tr',
              {},
              el('th', { scope: 'row' }, el('a', { href: anchor(`edit-${e.n}`) }, text(`${e.n} ${e.title}`, 'clip'))),
              shown.map(m => {
                const d = e.deltas.find(x => x.key === m.key);
                return d ? cell([d.text[0], ''], tone(d.delta)) : el('td', {}, '');
              }),
            ),
          ),
          el(
            'tr',
            { class: 'total' },
            el('th', { scope: 'row' }, 'All'),
            shown.map(m => cell([m.deltaText[0], ''], tone(m.delta))),
          ),
        ),
      ),
    ),
  );
}

const statuses = new Set();

function drawTensors() {
  const all = report.tensors;
  if (!all.length) return;
  const there = ['renamed', 'reshaped', 'new', 'dropped', 'kept'].filter(s => all.some(t => t.status === s));
  const shown = all.filter(t => statuses.has(t.status) && matches(t.hay));
  const button = s =>
    el(
      'button',
      {
        type: 'button',
        'aria-pressed': String(statuses.has(s)),
        click: () => {
          if (!statuses.delete(s)) statuses.add(s);
          drawTensors();
          byId('tensors').querySelector(`[data-status="${s}"]`).focus();
        },
        'data-status': s,
      },
      el('i', { class: s }),
      `${s} ${all
        .filter(t => t.status === s)
        .reduce((n, t) => n + t.count, 0)
        .toLocaleString('en')}`,
    );
  byId('tensors').replaceChildren(
    el(
      'div',
      { class: 'title' },
      el('h2', { id: 'tensors-title' }, 'Checkpoint tensors'),
      el('div', { class: 'filters', role: 'group', 'aria-label': 'Tensors to show' }, there.map(button)),
    ),
    shown.length
      ? tensorTable(shown)
      : el(
          'p',
          { class: 'empty' },
          state.query ? 'No tensor of these kinds matches.' : 'Every tensor is kept. Choose a kind above to list its tensors.',
        ),
  );
}

function drawLayers() {
  byId('layers').replaceChildren(
    ...Object.entries(report.layers).map(([name, value]) =>
      el('details', { class: 'more' }, el('summary', {}, text(name)), el('div', { class: 'scroll' }, el('pre', {}, value))),
    ),
  );
}
