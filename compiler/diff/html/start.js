// The head of the page, the theme, keys, and the start.

const KEYS = [
  ['n, j', 'next edit; in a view, next change'],
  ['p, k', 'the one before'],
  ['/', 'search'],
  ['Enter', 'open or close'],
  ['e, c', 'expand all, collapse all'],
  ['t', 'dark or light'],
  ['1, 2, 3', 'architecture, wiring and so on'],
  ['m', 'wiring: one picture, or side by side'],
  ['w', 'use the whole width'],
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
  byId('shortcuts').append(
    el('h2', { id: 'shortcuts-title' }, 'Keys'),
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
  m: () => tabs.some(t => t.id === 'wiring') && setTogether(!together),
  w: toggleWide,
  '/': () => {
    byId('search').focus();
    byId('search').select();
  },
  '?': () => byId('shortcuts').showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId('shortcuts').open) return;
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
  const tab = /^[1-9]$/.test(event.key) && tabs[Number(event.key) - 1];
  if (!tab && !ACTS[event.key]) return;
  event.preventDefault();
  if (!tab) return ACTS[event.key]();
  tab.button.click();
  tab.button.focus();
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

/** A page without a comparison: all are alike, or none could be made. */
function drawNothing() {
  document.body.classList.add('bare');
  byId('name').append('nnspec diff');
  const failed = all.failures.length;
  byId('verdicts').append(
    el(
      'div',
      { class: `empty hero ${failed ? 'bad' : 'ok'}` },
      icon(failed ? 'bad' : 'ok'),
      el('b', {}, failed ? (failed === 1 ? 'The comparison failed' : `${plural(failed, 'comparison')} failed`) : 'No spec differs.'),
    ),
  );
  byId('alerts').append(...failures());
}

function start() {
  if (!report) return drawNothing();
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
  }
  indexTree(report.tree, null, '');
  indexWiring();
  indexSources();
  drawHead();
  drawVerdicts();
  drawEdits();
  drawCosts();
  makeTabs();
  drawPosition();
  listen();
  follow();
}

start();
