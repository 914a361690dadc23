// The live page: draws what the stream of events brings.

import { drawExperiment } from './experiment.js';
import { drawOpen, drawTable, prepare } from './flows.js';
import { PlotList } from './plot.js';
import { connect, state, watch } from './state.js';
import { LIMITERS, accountText, bytes, count, element, percent, rate, setText, words } from './text.js';

const find = id => document.getElementById(id);
const history = new PlotList(find('history'));
const linkPlots = new PlotList(find('link-plots'));
const networkPlots = new PlotList(find('network-plots'));
let span = 600;

/** The points of the shown time: seconds as far as they go back, minutes before them. */
const points = () => {
  const first = state.seconds.length ? state.seconds[0].at : Infinity;
  return [...state.minutes.filter(({ at }) => at < first), ...state.seconds];
};

const present = () => state.seconds.length ? state.seconds.at(-1).at : Date.now() / 1000;

/** A tile with a number and what it is; made once, then changed. */
const tiles = new Map();
const tile = (name, value) => {
  if (!tiles.has(name)) {
    const node = element('div', 'tile');
    node.append(element('b'), element('span', '', name));
    find('tiles').append(node);
    tiles.set(name, node.firstElementChild);
  }
  setText(tiles.get(name), value);
};

const drawTiles = ({ point, totals }) => {
  tile('to clients', rate(point ? point.down : null));
  tile('to servers', rate(point ? point.up : null));
  if (!totals) return;
  tile('flows', count(totals.flows));
  const ended = Object.values(totals.ended).reduce((sum, value) => sum + value, 0);
  tile('flows ended', count(ended));
  tile('of them not finished', count(ended - (totals.ended.finished ?? 0)));
  tile('carried', bytes(totals.up + totals.down));
};

const drawHistory = () => {
  const all = points();
  const of = name => all.map(point => [point.at, point[name]]);
  const lines = [{ name: 'to clients', colour: 0 }, { name: 'to servers', colour: 1 }];
  history.update(present(), span, [
    ['throughput', 'Throughput', 'rate', lines, [of('down'), of('up')]],
    ['flows', 'Flows', 'count', [{ name: 'flows', colour: 2 }], [of('flows')]],
  ]);
};

/** The colours of the limiters, in the order of the path. */
const COLOURS = [6, 0, 4, 1, 3];

const prepareLimiters = () => {
  const parent = find('limiters');
  for (const name of ['flows', 'bytes']) {
    const stack = element('div', 'stack');
    stack.id = `stack-${name}`;
    stack.setAttribute('role', 'img');
    stack.append(...LIMITERS.map((_, index) => element('b', `c${COLOURS[index]}`)));
    parent.append(element('span', '', name), stack);
  }
  const legend = element('ul', 'legend');
  legend.append(...LIMITERS.map((name, index) => {
    const entry = element('li');
    const text = element('span');
    text.id = `share-${name}`;
    entry.append(element('i', `c${COLOURS[index]}`), text);
    return entry;
  }));
  parent.append(legend);
};

const drawLimiters = ({ flows, bps }) => {
  const shares = values => {
    const sum = values.reduce((all, value) => all + value, 0);
    return values.map(value => sum > 0 ? value / sum : 0);
  };
  const [ofFlows, ofBytes] = [shares(flows), shares(bps)];
  for (const [name, values] of [['flows', ofFlows], ['bytes', ofBytes]]) {
    const stack = find(`stack-${name}`);
    values.forEach((share, index) => { stack.children[index].style.width = `${share * 100}%`; });
    stack.setAttribute('aria-label', LIMITERS.map((limiter, index) => `${words(limiter)} ${percent(values[index])}`).join(', '));
  }
  LIMITERS.forEach((name, index) =>
    setText(find(`share-${name}`), `${words(name)}: ${percent(ofFlows[index])} of flows, ${percent(ofBytes[index])} of bytes`));
};

/** Fills a table: a row for each list of texts, of which the first is a heading. */
const fill = (body, rows) => {
  while (body.children.length > rows.length) body.lastElementChild.remove();
  while (body.children.length < rows.length) {
    const row = element('tr');
    const head = element('th', 'words');
    head.scope = 'row';
    row.append(head, ...rows[0].slice(1).map(() => element('td')));
    body.append(row);
  }
  rows.forEach((texts, index) => texts.forEach((text, at) => setText(body.children[index].children[at], text)));
};

/** The capacity in use, and where it is from if it is not the configured one. */
const capacity = link => {
  if (link.configured_bps) return `${rate(link.capacity_bps)}, estimated (${rate(link.configured_bps)} is configured)`;
  if (!link.estimated) return rate(link.capacity_bps);
  return link.capacity_bps ? `${rate(link.capacity_bps)}, estimated` : 'not estimated yet';
};

/** What all flows of a leg's profile used of its link. */
const drawAccounts = accounts => {
  find('accounts-section').hidden = accounts.length === 0;
  fill(find('accounts'), accounts.map(({ leg, profile, account }) => [leg === profile ? leg : `${leg}, ${profile}`, accountText(account)]));
};

const drawLinks = links => {
  find('links-section').hidden = links.length === 0;
  fill(find('links'), links.map(link => [
    link.link,
    capacity(link),
    rate(link.egress_bps),
    link.capacity_bps ? percent(link.egress_bps / link.capacity_bps) : '–',
    bytes(link.queue_bytes),
    count(link.drops),
    count(link.share_flows),
    link.share_bps ? rate(link.share_bps) : '–',
  ]));
  const all = points();
  const of = (name, index) => all.filter(({ links }) => links?.[name]).map(point => [point.at, point.links[name][index]]);
  const rates = [{ name: 'egress', colour: 0 }, { name: 'capacity', colour: 6, dashed: true }];
  linkPlots.update(present(), span, links.flatMap(({ link }) => [
    [`rate ${link}`, `${link}: rate`, 'rate', rates, [of(link, 0), of(link, 1)]],
    [`queue ${link}`, `${link}: standing queue`, 'bytes', [{ name: 'queue', colour: 4 }], [of(link, 2)]],
  ]));
};

const drawNetworks = networks => {
  const names = Object.keys(networks ?? {});
  find('networks-section').hidden = names.length === 0;
  const now = state.tick.point?.networks ?? {};
  const rates = name => now[name] ?? [0, 0, 0];
  const sum = names.reduce((all, name) => all + rates(name)[0] + rates(name)[1], 0);
  fill(find('networks'), names.map(name => [
    name,
    `${rate(rates(name)[0])}, ${bytes(networks[name].sent)}`,
    `${rate(rates(name)[1])}, ${bytes(networks[name].received)}`,
    sum > 0 ? percent((rates(name)[0] + rates(name)[1]) / sum) : '–',
    count(networks[name].connections),
    rates(name)[2].toFixed(2),
  ]));
  const all = points();
  const of = (name, value) => all.filter(point => point.networks?.[name]).map(point => [point.at, value(point.networks[name])]);
  const lines = names.map((name, index) => ({ name, colour: index % 7 }));
  networkPlots.update(present(), span, names.length ? [
    ['carried', 'Payload over each network', 'rate', lines, names.map(name => of(name, values => values[0] + values[1]))],
    ['waiting', 'Time that others wait for each network, s/s', 'count', lines, names.map(name => of(name, values => values[2]))],
  ] : []);
};

const STATES = {
  connecting: 'connecting …',
  live: 'live, every second',
  lost: 'The proxy does not answer. Trying again every second.',
};

const draw = () => {
  const status = find('status');
  status.className = state.connection;
  setText(status, STATES[state.connection]);
  if (state.hello) {
    const name = state.hello.name === 'default' ? 'Tandem' : `Tandem: ${state.hello.name}`;
    setText(find('title'), name);
    if (document.title !== name) document.title = name;
    setText(find('about'), `Tandem ${state.hello.version}. The last ten minutes by seconds, the hour by minutes.`);
  }
  find('range').querySelectorAll('button').forEach(button =>
    button.setAttribute('aria-pressed', String(+button.dataset.range === span)));
  if (!state.hello || !state.tick) return;
  drawTiles(state.tick);
  drawHistory();
  drawLimiters(state.tick.limiters);
  drawAccounts(state.tick.totals?.accounts ?? []);
  drawLinks(state.tick.links);
  drawNetworks(state.tick.networks);
  drawExperiment(state.tick.experiment);
  drawOpen();
  drawTable();
  window.dispatchEvent(new Event('redrawn'));
};

find('range').addEventListener('click', event => {
  if (!event.target.dataset.range) return;
  span = +event.target.dataset.range;
  draw();
});
prepare();
prepareLimiters();
watch(draw);
draw();
connect(true);
