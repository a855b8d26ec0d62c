// Verdicts and edits.

const MANY = 4; // changes of a contract that a card shows at once

const contracts = items =>
  el(
    'dl',
    {},
    items.map(i => [
      el('dt', {}, text(i.name)),
      el('dd', {}, values(i.before, i.after, true, true), i.before === null && i.after === null && i.rule),
    ]),
  );

function drawVerdicts() {
  byId('verdicts').hidden = !report.verdicts.length;
  byId('verdicts').replaceChildren(
    el(
      'ul',
      { class: 'cards' },
      report.verdicts.map(v =>
        el(
          'li',
          { class: v.tone, 'data-verdict': v.name },
          el('h2', {}, v.name),
          el('p', { class: 'word' }, icon(v.tone), el('span', {}, v.word)),
          v.text && el('p', {}, v.text),
          v.bar && v.bar.some(([, n]) => n) && stack(v.bar),
          v.facts &&
            v.facts.length > 0 &&
            el(
              'ul',
              { class: 'facts' },
              v.facts.map(f => el('li', {}, f)),
            ),
          v.silent &&
            v.silent.length > 0 &&
            el(
              'p',
              {},
              'Silent: ',
              v.silent.map((n, k) => [k ? ', ' : '', editLink(n)]),
            ),
          v.items && contracts(v.items.slice(0, MANY)),
          v.items?.length > MANY &&
            el('details', { class: 'more' }, el('summary', {}, `${v.items.length - MANY} more`), contracts(v.items.slice(MANY))),
        ),
      ),
    ),
  );
  const alerts = [...report.diagnostics.map(t => ['warn', t]), ...[...report.notes, ...all.shared].map(t => ['note', t])];
  byId('alerts').replaceChildren(...alerts.map(([tone, t]) => el('p', { class: `alert ${tone}` }, icon(tone), prose(t))), ...failures());
}

/** What could not be compared, as the command prints it. */
const failures = () => all.failures.map(t => el('p', { class: 'alert bad' }, icon('bad'), text(t)));

/** How much of the parameters each status has. */
function stack(parts) {
  const said = parts.map(([s, n]) => `${n.toLocaleString('en')} ${s}`).join(', ');
  return el(
    'div',
    { class: 'stack', role: 'img', 'aria-label': `parameters: ${said}`, title: said },
    parts.map(([status, n]) => {
      const made = el('i', { class: status });
      made.style.flexGrow = Math.max(n, 1);
      return made;
    }),
  );
}

const editLink = n => el('a', { href: anchor(`edit-${n}`) }, `edit ${n}`);

function drawEdits() {
  const open = new Set([...document.querySelectorAll('.edit[open]')].map(d => d.id));
  const shown = report.edits.filter(e => matches(e.hay));
  const title = state.query
    ? `${shown.length} of ${plural(report.edits.length, 'edit')}`
    : report.edits.length
      ? plural(report.edits.length, 'edit')
      : 'No edits';
  byId('edits').replaceChildren(
    el(
      'div',
      { class: 'title' },
      el('h2', { id: 'edits-title' }, title),
      report.edits.length > 0 && el('span', { class: 'muted' }, report.tally.split(': ')[1] || ''),
    ),
    report.edits.length === 0
      ? unchanged()
      : shown.length === 0
        ? el('p', { class: 'empty' }, 'No edit matches.')
        : el(
            'ol',
            { class: 'edits' },
            shown.map(e => el('li', {}, editCard(e, open.has(`card-${e.n}`)))),
          ),
  );
}

function unchanged() {
  const both = report.base && report.head;
  return el(
    'div',
    { class: `empty hero ${both ? 'ok' : report.base ? 'warn' : 'note'}` },
    icon(both ? 'ok' : 'note'),
    el('b', {}, both ? 'No architectural change' : report.base ? 'The spec was removed' : 'A new spec'),
    text((report.head || report.base).facts),
  );
}

function editCard(e, open) {
  const parameters = e.deltas.find(d => d.key === 'parameters' && d.delta);
  const first = e.where.slice(0, 2);
  const card = el('details', { class: `edit ${TONES[e.level]}`, id: `card-${e.n}`, 'data-id': e.id, open });
  card.append(
    el(
      'summary',
      {},
      el('span', { class: 'symbol', 'aria-hidden': 'true' }, e.symbol),
      el(
        'h3',
        {},
        el('span', { class: 'num' }, hidden('Edit '), String(e.n)),
        text(e.title, 'name'),
        el('span', { class: 'values' }, values(e.before, e.after, true, e.symbol === '~')),
      ),
      el('span', { class: 'badges' }, e.accepted && el('span', { class: 'badge plain' }, 'accepted'), badge(TONES[e.level], e.level)),
      el(
        'span',
        { class: 'sub' },
        el('span', {}, e.what),
        first.length > 0 && text(first.map(w => w.text).join(', ') + (e.where.length > 2 ? ` and ${e.where.length - 2} more` : ''), 'mono'),
        parameters && el('span', { class: parameters.delta > 0 ? 'up' : 'down' }, `${parameters.text[0]} parameters`),
        e.checkpoint !== 'same' && el('span', {}, `checkpoint ${e.checkpoint}`),
      ),
    ),
  );
  card.addEventListener('toggle', () => fill(card, e));
  if (open) fill(card, e);
  return card;
}

/** The inside of a card, made when it is first opened. */
function fill(card, e) {
  if (!card.open || card.querySelector('.body')) return;
  const costs = e.deltas.filter(d => d.delta);
  const follow = e.consequences;
  card.append(
    el(
      'div',
      { class: 'body' },
      e.checkpoint === 'silent' && el('p', { class: 'convert bad' }, icon('bad'), ' ', el('b', {}, 'Silent: '), e.checkpointText),
      e.conversion &&
        el(
          'p',
          { class: `convert ${{ exact: 'ok', approx: 'warn', reinit: 'bad' }[e.conversion.kind]}` },
          el('b', {}, `Checkpoint, ${e.conversion.kind}: `),
          prose(e.conversion.text),
        ),
      el(
        'dl',
        { class: 'facts-list' },
        fact('Spec', [
          e.base && placeLink('base', e.base),
          e.base && e.head && el('span', { class: 'arrow' }, '→'),
          e.head && placeLink('head', e.head),
        ]),
        fact(
          'Keys',
          e.keys.map(k => text(k, '', 'code')),
        ),
        fact('Rule', [el('code', {}, e.rule)]),
        fact(
          'Touches',
          e.contracts.map(c => el('span', { class: 'badge plain' }, c)),
        ),
        fact('Checkpoint', e.checkpoint !== 'silent' && [el('b', {}, e.checkpoint), el('span', { class: 'muted' }, e.checkpointText)]),
        fact('Matched by', e.evidence && [e.evidence]),
        fact(
          'Costs',
          costs.map(d => el('span', {}, el('span', { class: d.delta > 0 ? 'up' : 'down' }, d.text[0]), ` ${d.name}`)),
        ),
        fact('Notes', e.notes.map(prose)),
      ),
      follow.length > 0 &&
        el(
          'div',
          {},
          el('h4', {}, plural(follow.length, 'change') + ' of the graph'),
          el(
            'ul',
            { class: 'follow' },
            follow.map(c =>
              el(
                'li',
                {},
                el('span', { class: 'what' }, c.what),
                c.key ? link(c.where) : text(c.where),
                el('span', {}, values(c.before, c.after)),
                c.note && text(c.note, 'muted'),
              ),
            ),
          ),
        ),
      e.tensors.length > 0 && el('div', {}, el('h4', {}, `Tensors: ${counted(e.tensors)}`), tensorTable(e.tensors)),
      el(
        'p',
        { class: 'muted' },
        el('a', { href: anchor(`edit-${e.n}`) }, 'Link to this edit'),
        ' or ',
        el('a', { href: anchor(e.id) }, 'by its lasting id'),
      ),
    ),
  );
}

function fact(name, content) {
  const found = [content].flat().filter(c => c !== null && c !== false && c !== undefined && c !== '');
  return found.length > 0 && [el('dt', {}, name), el('dd', {}, found)];
}
