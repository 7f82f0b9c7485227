// The page: takes in what the reconciler streams, and shows it as a grid of namespaces and rules.
//
// All that is shown of the cluster is other people's text, so it only ever becomes text: there is no HTML in here. Rows and
// columns exist in the document while they are in sight, so ten thousand of them cost no more than a screenful.

import { FAILED, HELD, PENDING, STATES, SUSPENDED, SYNCED, $, age, command, count, element, number, sign } from './elements.js';
import { showHeld } from './held.js';

/** In the order in which people want to see them. */
const BY_URGENCY = [4, 3, 2, 1, 0];

/** The age of a time: milliseconds since 1970, or text as Kubernetes writes it. */
const since = (time) => (time ? age((Date.now() - new Date(time)) / 1000) : '');
/** A source as people write it. */
const sourceName = ({ kind, namespace, name }) => (namespace ? `${kind} ${namespace}/${name}` : `${kind} ${name}, inline`);

// ---- what is known ----

/** Everything that one stream has shown. */
class Model {
  /** By their ids, as `ClusterReplication/registry`. */
  rules = new Map();
  /** By name. */
  rows = new Map();

  take({ ended = {}, rules = [], namespaces = [] }) {
    for (const id of ended.rules ?? []) this.rules.delete(id);
    for (const name of ended.namespaces ?? []) this.rows.delete(name);
    for (const { status, ...rule } of rules) {
      this.rules.set(rule.id, { conditions: [], sources: [], failures: [], ...status, ...rule });
    }
    for (const [name, terminating, places] of namespaces) {
      const cells = new Map();
      for (const [rule, state, time, copies, synced, reason] of places) {
        cells.set(rule, { state, since: time * 1000, copies, synced, reason });
      }
      this.rows.set(name, { name, terminating, cells });
    }
  }
}

const ready = (rule) => rule.conditions.find((condition) => condition.type === 'Ready');
/** What makes it wait for a person, if something does. */
const stalled = (rule) => rule.conditions.find(({ type, status }) => type === 'Stalled' && status === 'True');
const title = (rule) => (rule.namespace ? `${rule.namespace}/${rule.name}` : rule.name);
/** Why a cell is as it is: its own reason, else what the rule says of itself. */
const reasonOf = (rule, cell) => cell.reason ?? (cell.state === PENDING ? ready(rule)?.reason : undefined) ?? '';

let model = new Model();
/** What a new stream has shown until it is whole; the old one's stays in sight so long. */
let incoming = model;
/** Why there is nothing to see, if that is so. */
let notice = '';

// ---- filters ----

const wanted = { namespace: '', rule: '', object: '', source: '', reason: '', states: new Set() };
const has = (text, part) => text.toLowerCase().includes(part);

/** Whether the text is of an object that the cell has copies of, or of a copy: `secret/registry` or `team/secret/registry`. */
function concerns(row, rule) {
  return rule.sources.some(({ kind, namespace, name }) =>
    has(`${row.name}/${kind}/${name}`, wanted.object) || (namespace && has(`${namespace}/${kind}/${name}`, wanted.object)))
    // The copies that fail are known by name, others by their source's.
    || rule.failures.some(({ namespace, kind, name }) => namespace === row.name && has(`${namespace}/${kind}/${name}`, wanted.object));
}

function matches(row, rule, cell) {
  return (!wanted.states.size || wanted.states.has(cell.state))
    && (!wanted.object || concerns(row, rule))
    && (!wanted.reason || has(reasonOf(rule, cell), wanted.reason));
}

/** Most columns of the grid. With more, the filters lead to a rule sooner than the scroll bar. */
const COLUMNS = 200;

/** What is in the grid now, in its order. */
const view = { columns: [], rows: [], columnOf: new Map(), rowOf: new Map(), picky: false, rules: 0, sums: new Map() };

/** Rows follow the filters, and columns follow the rows: a rule that no row in the grid has needs no column. */
function select() {
  view.picky = Boolean(wanted.states.size || wanted.object || wanted.source || wanted.reason);
  const allowed = new Set([...model.rules.values()].filter((rule) => (!wanted.rule || has(title(rule), wanted.rule))
    && (!wanted.source || rule.sources.some((source) => has(sourceName(source), wanted.source)))));
  const counts = STATES.map(() => 0);
  /** The most urgent state of each rule in the rows. */
  const worst = new Map();
  view.rows = [];
  view.sums = new Map();
  for (const row of model.rows.values()) {
    if (wanted.namespace && !has(row.name, wanted.namespace)) continue;
    const cells = [...row.cells].map(([id, cell]) => [model.rules.get(id), cell]).filter(([rule]) => allowed.has(rule) && (!wanted.object || concerns(row, rule)));
    for (const [, cell] of cells) counts[cell.state] += 1;
    if (view.picky && !cells.some(([rule, cell]) => matches(row, rule, cell))) continue;
    view.rows.push(row);
    for (const [rule, cell] of cells) {
      worst.set(rule, Math.max(worst.get(rule) ?? SYNCED, cell.state));
      const sum = view.sums.get(rule.id) ?? { copies: 0, synced: 0 };
      view.sums.set(rule.id, { copies: sum.copies + cell.copies, synced: sum.synced + cell.synced });
    }
  }
  // A rule that selects nothing at all is worth a column, unless the filters are about namespaces or copies.
  const narrow = view.picky || wanted.namespace;
  const columns = [...allowed].filter((rule) => worst.has(rule) || !narrow);
  view.rules = columns.length;
  const byName = (a, b) => a.kind.localeCompare(b.kind) || title(a).localeCompare(title(b));
  view.columns = columns
    .sort((a, b) => (worst.get(b) ?? -1) - (worst.get(a) ?? -1) || byName(a, b))
    .slice(0, COLUMNS)
    .sort(byName);
  view.rows.sort((a, b) => (a.name < b.name ? -1 : 1));
  view.columnOf = new Map(view.columns.map((rule, index) => [rule.id, index]));
  view.rowOf = new Map(view.rows.map((row, index) => [row.name, index]));
  for (const [state, button] of stateButtons) button.lastChild.textContent = number(counts[state]);
  $('summary').textContent = `${count(model.rules.size, 'rule')}, ${count(model.rows.size, 'namespace')}`;
  const all = view.rows.length === model.rows.size && view.columns.length === model.rules.size;
  const told = view.rules > COLUMNS ? `the ${COLUMNS} most urgent of ${number(view.rules)} rules` : count(view.rules, 'rule');
  $('found').textContent = all ? '' : `${count(view.rows.length, 'namespace')}, ${told}`;
  $('nothing').hidden = view.rows.length > 0;
  $('nothing').textContent = notice || (model.rows.size ? 'No namespace matches the filters' : '');
}

const stateButtons = BY_URGENCY.map((state) => {
  const button = element('button', '', sign(state), STATES[state], element('b', '', '0'));
  button.type = 'button';
  button.setAttribute('aria-pressed', 'false');
  button.addEventListener('click', () => {
    if (!wanted.states.delete(state)) wanted.states.add(state);
    button.setAttribute('aria-pressed', String(wanted.states.has(state)));
    remember(true);
    show();
  });
  return [state, button];
});
$('states').append(...stateButtons.map(([, button]) => button));

const FIELDS = ['namespace', 'rule', 'object', 'source', 'reason'];
/** The field whose text the newest entry of the browser's history has. */
let typing = '';
for (const field of FIELDS) {
  $(`by-${field}`).addEventListener('input', (event) => {
    wanted[field] = event.target.value.trim().toLowerCase();
    $('grid').scrollTop = 0;
    // One step back undoes what was typed into a field, not its last letter.
    remember(typing !== field);
    typing = field;
    show();
  });
}
$('filters').addEventListener('submit', (event) => event.preventDefault());

// ---- the address ----

/** Writes the filters and what the details are about into the address: a link to it shows the same, and so does a step back. */
function remember(step) {
  typing = '';
  const state = new URLSearchParams();
  for (const field of FIELDS) if ($(`by-${field}`).value) state.set(field, $(`by-${field}`).value);
  for (const index of BY_URGENCY) if (wanted.states.has(index)) state.append('state', STATES[index]);
  if (chosen?.namespace) state.set('in', chosen.namespace);
  if (chosen?.rule) state.set('of', chosen.rule);
  const address = `${location.pathname}${location.search}${state.size ? `#${state}` : ''}`;
  if (address === location.pathname + location.search + location.hash) return;
  history[step ? 'pushState' : 'replaceState'](null, '', address);
}

/** Takes the filters and the chosen cell from the address. */
function recall() {
  typing = '';
  const state = new URLSearchParams(location.hash.slice(1));
  for (const field of FIELDS) {
    const text = state.get(field) ?? '';
    $(`by-${field}`).value = text;
    wanted[field] = text.trim().toLowerCase();
  }
  wanted.states = new Set(state.getAll('state').map((name) => STATES.indexOf(name)).filter((index) => index >= 0));
  for (const [index, button] of stateButtons) button.setAttribute('aria-pressed', String(wanted.states.has(index)));
  const [namespace, rule] = [state.get('in'), state.get('of')];
  chosen = namespace || rule ? { namespace, rule } : null;
  unseen = chosen;
  show();
}
addEventListener('popstate', recall);

// ---- the grid ----

/** Where the keyboard is: a namespace (none: the head) and a rule (none: the names). Kept by name, so that it stays put. */
let active = { namespace: null, rule: null };
/** What the details are about. */
let chosen = null;
/** The chosen cell while the grid is still to be scrolled to it. */
let unseen = null;
/** The rows that are in the document, the head among them, by namespace: an element and its cells by rule. */
const drawn = new Map();

const measure = (name) => parseFloat(getComputedStyle(document.documentElement).getPropertyValue(name));
const size = { row: measure('--row'), head: measure('--head'), names: 0, column: 0 };

/** Brings the document in line with what is in sight. */
function draw() {
  const grid = $('grid');
  size.names = measure('--names');
  size.column = measure('--column');
  $('canvas').style.width = `${size.names + view.columns.length * size.column}px`;
  $('canvas').style.height = `${size.head + view.rows.length * size.row}px`;
  grid.setAttribute('aria-rowcount', view.rows.length + 1);
  grid.setAttribute('aria-colcount', view.columns.length + 1);

  const rows = inSight(grid.scrollTop, grid.clientHeight - size.head, size.row, view.rows.length);
  const columns = inSight(grid.scrollLeft, grid.clientWidth - size.names, size.column, view.columns.length);
  // Where the keyboard is stays in the document, in sight or not: else it would lose its place.
  rows.add(view.rowOf.get(active.namespace));
  columns.add(view.columnOf.get(active.rule));
  const names = new Set([null]);
  for (const index of rows) if (index !== undefined) names.add(view.rows[index].name);
  for (const [name, row] of drawn) {
    if (!names.has(name)) {
      row.element.remove();
      drawn.delete(name);
    }
  }
  for (const name of names) drawRow(name, [...columns].filter((index) => index !== undefined));
}

function inSight(from, length, step, end) {
  const first = Math.max(0, Math.floor(from / step) - 4);
  const last = Math.min(end, Math.ceil((from + length) / step) + 4);
  return new Set(Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index));
}

function drawRow(name, columns) {
  let row = drawn.get(name);
  if (!row) {
    row = { element: name === null ? $('head') : element('div', 'row'), cells: new Map() };
    row.element.setAttribute('role', 'row');
    if (name !== null) $('rows').append(row.element);
    drawn.set(name, row);
  }
  const index = view.rowOf.get(name);
  if (name !== null) {
    row.element.setAttribute('aria-rowindex', index + 2);
    row.element.style.top = `${size.head + index * size.row}px`;
  }
  const known = name === null ? null : view.rows[index];
  const ids = new Set([null, ...columns.map((column) => view.columns[column].id)]);
  for (const [key, cell] of row.cells) {
    if (!ids.has(key)) {
      cell.remove();
      row.cells.delete(key);
    }
  }
  for (const key of ids) drawCell(row, known, view.columns[view.columnOf.get(key)] ?? null);
}

function drawCell(row, namespace, rule) {
  const key = rule?.id ?? null;
  let cell = row.cells.get(key);
  if (!cell) {
    cell = element('div', 'cell');
    cell.place = { namespace: namespace?.name ?? null, rule: key };
    cell.setAttribute('role', namespace ? (rule ? 'gridcell' : 'rowheader') : 'columnheader');
    row.element.append(cell);
    row.cells.set(key, cell);
  }
  const column = view.columnOf.get(key);
  cell.setAttribute('aria-colindex', rule ? column + 2 : 1);
  if (rule) cell.style.left = `${size.names + column * size.column}px`;
  cell.tabIndex = same(cell.place, active) ? 0 : -1;
  const drawing = describe(namespace, rule);
  const classes = ['cell', drawing.className, same(cell.place, chosen) && 'chosen'].filter(Boolean).join(' ');
  const signature = [classes, drawing.label, drawing.age].join('\n');
  if (cell.signature === signature) return;
  cell.signature = signature;
  cell.className = classes;
  cell.title = drawing.label;
  cell.setAttribute('aria-label', drawing.label);
  cell.replaceChildren(...drawing.children);
}

const same = (a, b) => Boolean(a && b) && a.namespace === b.namespace && a.rule === b.rule;

/** What a cell of the grid shows, and what it says to those who don't see it. */
function describe(namespace, rule) {
  const text = (words) => element('span', 'text', words);
  const small = (...words) => element('span', 'age', ...words);
  if (!namespace && !rule) {
    return { className: 'name', label: 'Namespace', age: '', children: [text('Namespace')] };
  }
  if (!rule) {
    const note = namespace.terminating ? 'terminating' : '';
    const label = [namespace.name, note].filter(Boolean).join(', ');
    return { className: 'name', label, age: '', children: [text(namespace.name), small(note)] };
  }
  if (!namespace) {
    // Of the rows in the grid, as the cells below say it. The rule's status is some seconds older.
    const { copies, synced } = view.sums.get(rule.id) ?? { copies: 0, synced: 0 };
    const reason = ready(rule)?.reason ?? 'Pending';
    const counts = `${number(synced)} of ${number(copies)}`;
    const short = !copies ? reason : synced === copies ? number(copies) : counts;
    const label = `${rule.kind} ${title(rule)}: ${reason}, ${counts} synced`;
    return { className: '', label, age: '', children: [text(title(rule)), small(sign(stateOf(rule)), short)] };
  }
  const cell = namespace.cells.get(rule.id);
  if (!cell) {
    return { className: 'none', label: `${title(rule)} in ${namespace.name}: not selected`, age: '', children: [text('·')] };
  }
  const [state, reason, time] = [STATES[cell.state], reasonOf(rule, cell), since(cell.since)];
  const parts = cell.copies > 1 ? `${cell.synced}/${cell.copies}` : '';
  const label = `${title(rule)} in ${namespace.name}: ${[state, reason, parts].filter(Boolean).join(' ')}`;
  const dim = view.picky && !matches(namespace, rule, cell) ? ' dim' : '';
  const words = [reason, parts].filter(Boolean).join(' ');
  const children = [sign(cell.state), time && small(time), words && text(words)].filter(Boolean);
  return { className: state.toLowerCase() + dim, label, age: time, children };
}

/** A rule's own state, as one of those of the cells. */
function stateOf(rule) {
  const condition = ready(rule);
  if (rule.suspended) return SUSPENDED;
  if (stalled(rule)?.reason === 'DeletionHeld') return HELD;
  if (condition?.status === 'True') return SYNCED;
  return !condition || condition.reason === 'Pending' ? PENDING : FAILED;
}

/** Moves the keyboard's place by so many rows and columns. */
function move(down, right) {
  const row = (view.rowOf.get(active.namespace) ?? -1) + down;
  const column = (view.columnOf.get(active.rule) ?? -1) + right;
  go(Math.max(-1, Math.min(view.rows.length - 1, row)), Math.max(-1, Math.min(view.columns.length - 1, column)));
}

function go(row, column) {
  reveal(row, column);
  draw();
  focusActive();
}

/** Brings a place of the grid in sight and makes it the keyboard's. */
function reveal(row, column) {
  const grid = $('grid');
  active = { namespace: view.rows[row]?.name ?? null, rule: view.columns[column]?.id ?? null };
  if (row >= 0) {
    const top = row * size.row;
    grid.scrollTop = Math.min(top, Math.max(grid.scrollTop, top + size.row + size.head - grid.clientHeight));
  }
  if (column >= 0) {
    const left = column * size.column;
    grid.scrollLeft = Math.min(left, Math.max(grid.scrollLeft, left + size.column + size.names - grid.clientWidth));
  }
}

function focusActive() {
  drawn.get(active.namespace)?.cells.get(active.rule)?.focus({ preventScroll: true });
}

const keys = {
  ArrowDown: () => move(1, 0),
  ArrowUp: () => move(-1, 0),
  ArrowRight: () => move(0, 1),
  ArrowLeft: () => move(0, -1),
  PageDown: () => move(page(), 0),
  PageUp: () => move(-page(), 0),
  Home: (event) => move(event.ctrlKey ? -Infinity : 0, -Infinity),
  End: (event) => move(event.ctrlKey ? Infinity : 0, Infinity),
  Enter: () => choose(active, true),
  ' ': () => choose(active, true),
};
const page = () => Math.max(1, Math.floor(($('grid').clientHeight - size.head) / size.row) - 1);

$('grid').addEventListener('keydown', (event) => {
  const act = keys[event.key];
  if (!act || event.altKey || event.metaKey) return;
  event.preventDefault();
  act(event);
});
$('grid').addEventListener('click', (event) => {
  const cell = event.target.closest('.cell');
  if (!cell) return;
  active = cell.place;
  choose(active, false);
  focusActive();
});
$('grid').addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
new ResizeObserver(() => draw()).observe($('grid'));

document.addEventListener('keydown', (event) => {
  if (event.key === '/' && !event.target.closest('input, dialog')) {
    event.preventDefault();
    $('by-namespace').focus();
  } else if (event.key === 'Escape' && event.target.closest('#details')) {
    choose(null, false);
    focusActive();
  }
});

// ---- details ----

function choose(place, enter) {
  chosen = place && (place.namespace !== null || place.rule !== null) ? { ...place } : null;
  unseen = null;
  remember(true);
  draw();
  detail();
  if (enter) $('details').focus();
}

const ruleOf = (key) => model.rules.get(key);

/** Shows what is known of what was chosen, or what is amiss. */
function detail() {
  const rule = ruleOf(chosen?.rule);
  const row = model.rows.get(chosen?.namespace);
  if (rule && row) {
    aboutCell(rule, row);
    return;
  }
  // Whatever was asked for a cell comes too late.
  asked += 1;
  told = [];
  if (rule) aboutRule(rule);
  else if (row) aboutNamespace(row);
  else aboutAll();
}

/** Replaces the details where they differ: what is being read, or selected, stays. */
function tell(...parts) {
  const next = element('div', 'stack', ...parts);
  if (!$('details').firstElementChild?.isEqualNode(next)) $('details').replaceChildren(next);
}

const section = (name, ...parts) => element('section', '', element('h3', '', name), ...parts);
const list = (items) => element('ul', '', ...items.map((item) => element('li', '', ...item)));
const line = (state, text, small) =>
  element('div', 'line', sign(state), element('span', 'text', text), element('span', 'age', small ?? ''));
const message = (text) => (text ? element('p', 'message', text) : undefined);

/** A line that leads to a place in the grid. */
function lead(place, ...parts) {
  const button = element('button', '', ...parts);
  button.type = 'button';
  button.dataset.namespace = place.namespace ?? '';
  button.dataset.rule = place.rule ?? '';
  return [button];
}
$('details').addEventListener('click', (event) => {
  const button = event.target.closest('button:not([data-copy])');
  if (!button) return;
  const place = { namespace: button.dataset.namespace || null, rule: button.dataset.rule || null };
  choose(place, false);
  go(view.rowOf.get(place.namespace) ?? -1, view.columnOf.get(place.rule) ?? -1);
});

function aboutAll() {
  const attention = element('h2', '', 'Attention');
  const rules = [...model.rules.values()].filter((rule) => stateOf(rule) !== SYNCED);
  rules.sort((a, b) => stateOf(b) - stateOf(a) || title(a).localeCompare(title(b)));
  if (!rules.length) {
    tell(attention, element('p', 'quiet', model.rules.size ? 'Every rule is ready.' : 'There are no rules.'));
    return;
  }
  const items = rules.slice(0, 50).map((rule) => {
    const { reason = 'Pending', message: why, lastTransitionTime: time } = stalled(rule) ?? ready(rule) ?? {};
    return lead({ rule: rule.id }, line(stateOf(rule), title(rule), since(time)), element('div', '', reason), message(why));
  });
  const more = rules.length > items.length ? element('p', 'quiet', `and ${number(rules.length - items.length)} more`) : undefined;
  tell(attention, list(items), more ?? '');
}

function aboutRule(rule) {
  const facts = element('dl', '');
  const fact = (name, value) => value && facts.append(element('dt', '', name), element('dd', '', value));
  fact('Kind', rule.kind);
  fact('Sources', rule.sources.map(sourceName).join('\n'));
  if (rule.copies) fact('Copies', `${number(rule.copies.synced)} of ${number(rule.copies.desired)} synced, ${number(rule.copies.failed)} failed`);
  fact('Last sync', rule.lastSyncTime && `${since(rule.lastSyncTime)} ago`);
  const conditions = rule.conditions.map((condition) => [
    line(condition.type === 'Ready' ? stateOf(rule) : toneOf(condition), `${condition.type}: ${condition.reason}`, since(condition.lastTransitionTime)),
    message(condition.message),
    condition === stalled(rule) && condition.reason === 'DeletionHeld' ? confirm(rule) : '',
  ]);
  const failures = rule.failures.map((failure) => [
    ...lead(
      { namespace: failure.namespace, rule: rule.id },
      line(FAILED, failure.namespace, failure.reason),
      element('div', '', `${failure.kind} ${failure.name}`),
      message(failure.message),
    ),
    why(failure.namespace, failure),
  ]);
  const more = (rule.copies?.failed ?? 0) - failures.length;
  tell(
    element('h2', '', title(rule)),
    facts,
    failures.length ? section('Failures', list(failures), more > 0 ? element('p', 'quiet', `and ${number(more)} more in the grid`) : undefined) : undefined,
    section('Conditions', list(conditions)),
  );
}

/** The command that says why a copy is not there, or differs. */
const why = (namespace, { kind, name }) => command('kubectl', 'mimeo', 'why', `${namespace}/${kind}/${name}`);
/** The command that lets a rule's held deletion happen. */
const confirm = (rule) => command('kubectl', 'mimeo', 'confirm', rule.id);

/** Whether a condition is good news. Stalled and Reconciling are the other way round than the rest. */
function toneOf({ type, status, reason }) {
  if (type === 'Stalled') return HELD;
  if (type === 'Reconciling' || reason === 'Pending') return PENDING;
  return status === 'True' ? SYNCED : reason === 'Disabled' ? SUSPENDED : FAILED;
}

function aboutNamespace(row) {
  const rules = [...row.cells].map(([rule, cell]) => [model.rules.get(rule), cell]).filter(([rule]) => rule);
  rules.sort(([a, x], [b, y]) => y.state - x.state || title(a).localeCompare(title(b)));
  const items = rules.map(([rule, cell]) => lead(
    { namespace: row.name, rule: rule.id },
    line(cell.state, title(rule), since(cell.since)),
    element('div', 'message', [STATES[cell.state], reasonOf(rule, cell)].filter(Boolean).join(', ')),
  ));
  const none = element('p', 'quiet', row.terminating ? 'It is being deleted.' : 'No rule selects it.');
  tell(element('h2', '', row.name), section('Rules', items.length ? list(items) : none));
}

/** The copies of a cell are asked for, once for each change of it: messages of ten thousand cells would be too much to stream. */
let asked = 0;
/** The rule and the cell that the details are of. */
let told = [];
async function aboutCell(rule, row) {
  const cell = row.cells.get(rule.id);
  if (cell && told[0] === rule && told[1] === cell) return;
  const head = [element('h2', '', `${title(rule)} in ${row.name}`)];
  if (!cell) {
    asked += 1;
    told = [];
    tell(...head, element('p', 'quiet', 'The rule does not select this namespace.'));
    return;
  }
  const turn = (asked += 1);
  const query = new URLSearchParams({ rule: rule.id, namespace: row.name });
  const answer = await request(`copies?${query}`).catch(() => undefined);
  if (!answer?.ok || turn !== asked) return;
  const copies = await answer.json();
  if (turn !== asked) return;
  const items = copies.map((copy) => [
    line(copy.state, `${copy.kind} ${copy.name}`, since(copy.since)),
    element('div', '', [STATES[copy.state], copy.reason].filter(Boolean).join(', ')),
    message(copy.message),
    copy.state === HELD ? confirm(rule) : [PENDING, FAILED].includes(copy.state) ? why(row.name, copy) : '',
  ]);
  const own = cell.state === PENDING && !cell.reason ? message(ready(rule)?.message) : undefined;
  const meaning = cell.state === FAILED ? 'Ages: since when it fails.' : 'Ages: since the copy was last written.';
  told = [rule, cell];
  tell(...head, own, section('Copies', list(items)), element('p', 'quiet', meaning));
}

// ---- the stream ----

let token = '';
const request = (path, options = {}) =>
  fetch(path, { cache: 'no-store', headers: token ? { Authorization: `Bearer ${token}` } : {}, ...options });

function live(is, words) {
  $('live').dataset.is = is;
  $('live').textContent = words;
}

/** Follows the stream, again and again. The reconciler says something every few seconds: silence means that it is lost. */
async function follow() {
  for (let pause = 500; ; pause = Math.min(2 * pause, 15_000)) {
    const connection = new AbortController();
    let silence = setTimeout(() => connection.abort(), 20_000);
    try {
      const answer = await request('stream', { signal: connection.signal });
      if (answer.status === 401 || answer.status === 403) {
        clearTimeout(silence);
        await askForToken(answer.status);
        pause = 250;
        continue;
      }
      if (!answer.ok) throw new Error((await answer.text()).trim() || `HTTP ${answer.status}`);
      for await (const { event, data } of messages(answer.body)) {
        clearTimeout(silence);
        silence = setTimeout(() => connection.abort(), 20_000);
        pause = 500;
        if (event === 'view') take(data);
        if (event === 'held') showHeld(data, home);
        if (event === 'replica') introduce(data);
      }
      // It ends now and then, for the token to be shown again.
    } catch (error) {
      live('lost', `Connection lost, trying again (${error.name === 'AbortError' ? 'silence' : error.message})`);
    } finally {
      clearTimeout(silence);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** Server-sent events, read from a request that can carry a token; `EventSource` can't. */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split('\n\n');
    rest = whole.pop();
    for (const message of whole) {
      const fields = new Map(message.split('\n').map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()]));
      yield { event: fields.get('event'), data: fields.has('data') ? JSON.parse(fields.get('data')) : undefined };
    }
  }
}

function take(data) {
  if (data.anew) incoming = model.rows.size || model.rules.size ? new Model() : model;
  incoming.take(data);
  if (data.whole) {
    model = incoming;
    live('live', 'Live');
  }
  if (incoming === model) showSoon();
}

/** Where Mimeo is installed. */
let home = '';

/** Which replica it is. Only the one that leads knows how copies stand. */
function introduce({ name, namespace, leads, leader }) {
  notice = '';
  home = namespace;
  if (leads) return live('waiting', 'Taking everything in');
  model = incoming = new Model();
  showHeld({ deletions: [], more: 0 });
  live('waiting', 'This replica stands by');
  notice = leader
    ? `${name} stands by. ${leader} leads and knows how copies stand: kubectl port-forward -n ${namespace} pod/${leader} ${location.port || 8080}:ops`
    : `${name} stands by, and no replica leads now.`;
  show();
}

async function askForToken(status) {
  live('waiting', 'Waiting for a token');
  const why = status === 403 ? 'Whoever this token is of may not see it: that takes get on the paths /ui/stream and /ui/copies (nonResourceURLs in a ClusterRole).' : '';
  $('ask-why').textContent = why || (token ? 'The token is not accepted (any more).' : 'The reconciler shows its data to permitted users.');
  const dialog = $('ask');
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener('close', resolve, { once: true }));
  token = $('token').value.trim();
  $('token').value = '';
}

// ---- when to draw ----

function show() {
  select();
  if (active.namespace !== null && !view.rowOf.has(active.namespace)) active = { ...active, namespace: null };
  if (active.rule !== null && !view.columnOf.has(active.rule)) active = { ...active, rule: null };
  const held = document.activeElement?.closest('#grid');
  draw();
  const row = view.rowOf.get(unseen?.namespace);
  const column = view.columnOf.get(unseen?.rule);
  if (unseen && (row ?? column) !== undefined) {
    unseen = null;
    reveal(row ?? -1, column ?? -1);
    draw();
  }
  if (held) focusActive();
  detail();
}

/** Many changes are drawn at once, four times a second at most. */
let due = 0;
function showSoon() {
  due ||= setTimeout(() => {
    due = 0;
    show();
  }, 250);
}

// Ages grow by themselves.
setInterval(() => document.hidden || draw(), 10_000);

// ---- light and dark ----

const THEMES = ['auto', 'light', 'dark'];
function paint(theme) {
  document.documentElement.dataset.theme = theme;
  $('theme').textContent = `Theme: ${theme}`;
  localStorage.setItem('theme', theme);
}
$('theme').addEventListener('click', () => {
  paint(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
paint(THEMES.includes(localStorage.getItem('theme')) ? localStorage.getItem('theme') : 'auto');

recall();
follow();
