// The table of flows, and the flow that is open.

import { PlotList } from './plot.js';
import { closeFlow, openFlow, show, state } from './state.js';
import { accountText, age, bytes, count, delay, element, rate, setText, words } from './text.js';

const find = id => document.getElementById(id);
/** What a flow has only after its statistics have been read. */
const known = of => row => row.sampled ? of(row) : '–';
const retransmits = leg => count(leg.retransmits);

/** The columns: heading, order of the server, words or number, text of a row. A leg begins a group. */
const COLUMNS = [
  { head: 'client', sort: 'client', words: true, text: row => row.client },
  { head: 'server', sort: 'server', words: true, text: row => row.server },
  { head: 'age', sort: 'age', text: row => age(row.age_s) },
  { head: 'down', sort: 'down', text: row => rate(row.down_bps) },
  { head: 'up', sort: 'up', text: row => rate(row.up_bps) },
  { head: 'carried', sort: 'bytes', text: row => bytes(row.up.bytes + row.down.bytes) },
  { head: 'held', sort: 'held', text: known(row => bytes(row.up.held_bytes + row.down.held_bytes)) },
  { head: 'limited by', words: true, text: known(row => row.limited_by ? words(row.limited_by) : '–') },
  { leg: 'near leg', head: 'control', words: true, text: known(row => row.near.control || '–') },
  { head: 'RTT', sort: 'near-rtt', text: known(row => delay(row.near.rtt_s)) },
  { head: 'cwnd', text: known(row => count(row.near.cwnd_pkt)) },
  { head: 'retrans', sort: 'near-retrans', text: known(row => retransmits(row.near)) },
  { leg: 'far leg', head: 'control', words: true, text: known(row => row.far.control || '–') },
  { head: 'RTT', sort: 'far-rtt', text: known(row => delay(row.far.rtt_s)) },
  { head: 'cwnd', text: known(row => count(row.far.cwnd_pkt)) },
  { head: 'retrans', sort: 'far-retrans', text: known(row => retransmits(row.far)) },
];
/** What stands above the columns: heading, number of columns, order of the server. */
const GROUPS = [
  { head: '', span: 3 },
  { head: 'rate', span: 2, sort: 'rate' },
  { head: '', span: 3 },
  { head: 'near leg', span: 4, leg: true },
  { head: 'far leg', span: 4, leg: true },
];
/** Orders that begin with the smallest. */
const ASCENDING = ['client', 'server'];

const sortBy = sort => {
  const again = state.view.sort === sort;
  show({ sort, reversed: again && !state.view.reversed, page: 0 });
};

/** A heading. If the table can be sorted by it, it is a button. */
const heading = ({ head, sort, words: isWords, leg }) => {
  const cell = element('th', [isWords ? 'words' : '', leg ? 'first-of-leg' : ''].join(' ').trim());
  cell.scope = 'col';
  if (!sort) {
    cell.textContent = head;
    return cell;
  }
  const button = element('button', '', head);
  button.type = 'button';
  button.dataset.sort = sort;
  button.addEventListener('click', () => sortBy(sort));
  cell.append(button);
  return cell;
};

/** Makes the head of the table, and connects the controls. */
export const prepare = () => {
  const group = element('tr', 'group');
  group.append(...GROUPS.map(each => {
    const cell = heading(each);
    cell.colSpan = each.span;
    cell.scope = 'colgroup';
    return cell;
  }));
  const head = element('tr');
  head.append(...COLUMNS.map(heading));
  find('flows-head').append(group, head);
  find('flows').addEventListener('click', event => {
    const row = event.target.closest('tr[data-id]');
    const flow = row && state.tick.flows.rows.find(each => String(each.id) === row.dataset.id);
    if (!flow) return;
    openFlow(flow);
    find('open-section').scrollIntoView({ block: 'start' });
  });
  let typing = null;
  find('filter').addEventListener('input', event => {
    clearTimeout(typing);
    typing = setTimeout(() => show({ filter: event.target.value.trim(), page: 0 }), 250);
  });
  find('previous').addEventListener('click', () => show({ page: state.tick.flows.page - 1 }));
  find('next').addEventListener('click', () => show({ page: state.tick.flows.page + 1 }));
  find('close').addEventListener('click', closeFlow);
};

const newRow = () => {
  const row = element('tr');
  row.append(...COLUMNS.map((column, index) => {
    const cell = element('td', [column.words ? 'words' : '', column.leg ? 'first-of-leg' : ''].join(' ').trim());
    // The keyboard opens a flow by the button of its client.
    if (index === 0) cell.append(element('button'));
    return cell;
  }));
  return row;
};

const drawHead = () => {
  const { sort, reversed } = state.view;
  find('flows-head').querySelectorAll('button').forEach(button => {
    const cell = button.parentElement;
    if (button.dataset.sort !== sort) return cell.removeAttribute('aria-sort');
    const ascending = ASCENDING.includes(sort) !== reversed;
    cell.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
  });
};

/** Draws the table. Rows stay where they are and change their text, so that nothing flickers. */
export const drawTable = () => {
  const { flows } = state.tick;
  const body = find('flows');
  drawHead();
  body.querySelector('.none')?.parentElement.remove();
  while (body.children.length > flows.rows.length) body.lastElementChild.remove();
  while (body.children.length < flows.rows.length) body.append(newRow());
  flows.rows.forEach((flow, index) => {
    const row = body.children[index];
    row.dataset.id = String(flow.id);
    row.setAttribute('aria-selected', String(state.open !== null && !state.open.ended && state.open.id === flow.id));
    COLUMNS.forEach((column, at) => {
      const cell = row.children[at];
      setText(at === 0 ? cell.firstElementChild : cell, column.text(flow));
    });
  });
  if (flows.rows.length === 0) {
    const cell = element('td', 'none', flows.all ? 'No flow meets the filter.' : 'There are no flows.');
    cell.colSpan = COLUMNS.length;
    const row = element('tr');
    row.append(cell);
    body.append(row);
  }
  setText(find('filter-error'), flows.error ?? '');
  const filtered = flows.matching === flows.all ? '' : `${count(flows.matching)} of `;
  setText(find('count'), `${filtered}${count(flows.all)} flow${flows.all === 1 ? '' : 's'}`);
  const pages = Math.max(1, Math.ceil(flows.matching / state.hello.rows_of_a_page));
  setText(find('page'), `page ${flows.page + 1} of ${pages}`);
  find('previous').disabled = flows.page === 0;
  find('next').disabled = flows.page + 1 >= pages;
};

const plots = new PlotList(find('open-plots'));
const LEGS = [{ name: 'near leg', colour: 0 }, { name: 'far leg', colour: 1 }];
const DIRECTIONS = [{ name: 'down', colour: 0 }, { name: 'up', colour: 1 }];

/** The curves of a flow: title, unit, lines, and the values of a row. */
const CURVES = [
  ['Throughput', 'rate', DIRECTIONS, row => [row.down_bps, row.up_bps]],
  ['Congestion window, segments', 'count', LEGS, row => [row.near.cwnd_pkt, row.far.cwnd_pkt]],
  ['Smoothed RTT', 'delay', LEGS, row => [row.near.rtt_s, row.far.rtt_s]],
  ['Payload held by the proxy', 'bytes', DIRECTIONS, row => [row.down.held_bytes, row.up.held_bytes]],
  ['Delivery rate of the legs', 'rate', LEGS, row => [row.near.delivery_bps, row.far.delivery_bps]],
];

const legFacts = (name, leg) => [
  [`${name}: controller`, leg.control || '–'],
  [`${name}: RTT, minimum`, `${delay(leg.rtt_s)}, ${delay(leg.min_rtt_s)}`],
  [`${name}: cwnd, ssthresh`, `${count(leg.cwnd_pkt)}, ${leg.ssthresh_pkt == null ? '–' : count(leg.ssthresh_pkt)}`],
  [`${name}: retransmits, timeouts`, `${count(leg.retransmits)}, ${leg.timeouts ?? '–'}`],
];

const facts = row => {
  const always = [['age', age(row.age_s)], ['down, up', `${bytes(row.down.bytes)}, ${bytes(row.up.bytes)}`]];
  if (!row.sampled) return always;
  const directions = [['down', row.down], ['up', row.up]].filter(([, direction]) => direction.bytes > 0);
  const paths = row.bond ? row.bond.paths : [];
  return [
    ...always,
    ...directions.map(([name, direction]) => [`${name} is limited by`, words(direction.limited_by)]),
    ...directions.filter(([, direction]) => direction.account).map(([name, direction]) => [`${name}: used`, accountText(direction.account)]),
    ...directions.map(([name, direction]) => [`${name}: phase`, words(direction.phase)]),
    ...directions.filter(([, direction]) => direction.buffer_bytes != null)
      .map(([name, direction]) => [`${name}: buffer, follows the flow`, bytes(direction.buffer_bytes)]),
    ...legFacts('near leg', row.near),
    ...legFacts('far leg', row.far),
    ...paths.map(path => [`network ${path.network}`, `${bytes(path.sent_bytes)} sent, ${bytes(path.received_bytes)} received`]),
  ];
};

/** Draws the open flow. */
export const drawOpen = () => {
  const { open } = state;
  find('open-section').hidden = !open;
  if (!open) return plots.update(0, 1, []);
  setText(find('open-title'), `${open.row.client} → ${open.row.server}`);
  setText(find('open-state'), open.ended ? 'This flow has ended. What is shown is its last state.' : 'Open. The curves begin when it was opened here.');
  find('open-facts').replaceChildren(...facts(open.row).map(([name, value]) => {
    const fact = element('div');
    fact.append(element('dt', '', name), element('dd', '', value));
    return fact;
  }));
  const { samples } = open;
  if (!samples.length) return plots.update(0, 1, []);
  const now = samples.at(-1)[0];
  // The time axis grows with what is known.
  const span = [30, 60, 120, 300, 600, 1800, 3600].find(span => now - samples[0][0] <= span) || 3600;
  const curve = ([title, kind, lines, of]) =>
    [title, title, kind, lines, lines.map((_, index) => samples.map(([at, row]) => [at, of(row)[index] ?? NaN]))];
  plots.update(now, span, CURVES.map(curve));
};

