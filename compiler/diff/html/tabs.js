// Tabs: the architecture, the wiring, tensors, other layers, the files. What a tab shows is drawn when it is first seen.

const tabs = []; // { id, title, section, button, draw, count, stops, dirty }
let showing = null; // the tab that shows

/** Every tab that this comparison has something for. */
function makeTabs() {
  const rows = found => found.filter(r => matches(r.hay)).length;
  if (tree.length) addTab('tree', 'Architecture', drawTree, () => rows(tree), '.tree [role="row"][tabindex]:not(.same, .gaprow)');
  if (report.wiring.drawings.length) addTab('wiring', 'Wiring', drawWiring, () => rows(report.wiring.drawings), 'a.box:not(.same)');
  if (report.tensors.length) addTab('tensors', 'Tensors', drawTensors, () => rows(report.tensors), null);
  report.layers.forEach((layer, k) => {
    const id = ['keys', 'verify', 'onnx', 'checkpoint'].includes(layer.id) ? layer.id : `layer-${k}`;
    const all = layer.tables.flatMap(t => t.rows);
    addTab(
      id,
      layer.title,
      section => drawLayer(layer, section),
      () => all.filter(r => matches(said(r))).length,
      null,
    );
  });
  if (report.sources?.files.length) {
    addTab('yaml', 'YAML', drawSources, () => report.sources.files.flatMap(f => f.lines).filter(lineMatches).length, '.hunk');
  }
  byId('panels').hidden = !tabs.length;
  if (!tabs.length) return;
  const wide = el('button', { type: 'button', id: 'wide', title: 'Use the whole width (w)', 'aria-pressed': 'false', click: toggleWide });
  wide.append(icon('wide'));
  const list = el(
    'div',
    { class: 'tabs', role: 'tablist', 'aria-label': 'Views', keydown: onTabKey },
    tabs.map(t => t.button),
  );
  byId('panels').replaceChildren(el('div', { class: 'tabbar' }, list, wide), ...tabs.map(t => t.section));
  showTab(tabs[0].id);
}

function addTab(id, title, draw, count, stops) {
  const section = el('section', { id, role: 'tabpanel', 'aria-labelledby': `tab-${id}`, class: 'panel', tabindex: -1 });
  const attributes = { type: 'button', id: `tab-${id}`, role: 'tab', 'aria-controls': id, 'aria-selected': 'false', tabindex: -1 };
  const tab = { id, title, section, draw, count, stops, dirty: true };
  const choose = () => {
    showTab(id);
    history.replaceState(null, '', anchor(id));
  };
  tab.button = el('button', { ...attributes, click: choose }, text(title), el('span', { class: 'count', hidden: true }));
  section.hidden = true;
  tabs.push(tab);
}

function drawTab(tab) {
  if (!tab.dirty) return;
  tab.dirty = false;
  tab.draw(tab.section);
}

/** Shows a tab; false where there is none of this name. */
function showTab(id) {
  const tab = tabs.find(t => t.id === id);
  if (!tab) return false;
  for (const t of tabs) {
    t.section.hidden = t !== tab;
    t.button.setAttribute('aria-selected', String(t === tab));
    t.button.tabIndex = t === tab ? 0 : -1;
  }
  showing = tab;
  drawTab(tab);
  mark(current);
  return true;
}

/** After a search: what shows is drawn anew, the rest when it is seen; tabs say how much of theirs matches. */
function drawTabs() {
  for (const t of tabs) {
    t.dirty = true;
    const count = t.button.querySelector('.count');
    count.hidden = !state.query;
    count.textContent = state.query ? t.count().toLocaleString('en') : '';
  }
  if (showing) drawTab(showing);
}

function onTabKey(event) {
  const k = tabs.indexOf(showing);
  const to = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const tab = tabs.at(to % tabs.length);
  tab.button.click();
  tab.button.focus();
}

function toggleWide() {
  const wide = byId('columns').classList.toggle('wide');
  byId('wide').setAttribute('aria-pressed', String(wide));
  byId('panels').scrollIntoView({ block: 'nearest' });
}

/** Points out what an edit did, in every view that is drawn. */
function mark(n) {
  for (const made of document.querySelectorAll('#panels [data-edits]')) {
    made.classList.toggle('lit', made.dataset.edits.split(' ').includes(String(n)));
  }
}

/** The same, and shows the first of it where the view scrolls on its own. */
function light(n) {
  lit = n;
  mark(n);
  const first = showing?.section.querySelector('.lit');
  if (first) scrollInside(first);
}

/** Scrolls the view that holds an element, never the page. */
function scrollInside(made) {
  const view = made.closest('.view');
  if (!view || view.scrollHeight <= view.clientHeight + 4) return false;
  view.scrollTop += made.getBoundingClientRect().top - view.getBoundingClientRect().top - view.clientHeight / 3;
  return true;
}

/** Goes to something in a view. */
function arrive(made) {
  made.focus({ preventScroll: true });
  if (!scrollInside(made)) made.scrollIntoView({ block: 'center', inline: 'nearest' });
  made.classList.add('flash');
}
