// What the page knows: the history, the last tick, which flows it shows; and the stream of events
// that brings it.

const SECONDS = 600;
const MINUTES = 60;
/** The longest time that the curves of a flow go back, samples. */
const SAMPLES = 3600;
/** A stream without an event for this long is opened again, milliseconds. */
const SILENCE = 5000;
const PAUSE = 1000;

export const state = {
  hello: null,
  tick: null,
  seconds: [],
  minutes: [],
  /** What the server is asked to send. */
  view: { sort: 'rate', reversed: false, filter: '', page: 0, flow: null },
  /** The open flow: its number, its last row, its samples, whether it has ended. */
  open: null,
  connection: 'connecting',
};

let stream = null;
let timer = null;
let changed = () => {};

/** Calls `redraw` after each change. */
export const watch = redraw => { changed = redraw; };

const query = wantsHistory => {
  const { sort, reversed, filter, page, flow } = state.view;
  const fields = { sort, page: String(page) };
  if (reversed) fields.reversed = '1';
  if (filter) fields.filter = filter;
  if (flow !== null) fields.flow = String(flow);
  if (wantsHistory) fields.history = '1';
  return new URLSearchParams(fields).toString();
};

const push = (points, point, most) => {
  points.push(point);
  if (points.length > most) points.splice(0, points.length - most);
};

/** Adds a point of the history, if it is a new one. */
const extend = (points, point, most) => {
  const last = points.at(-1);
  if (point && !(last && point.at <= last.at)) push(points, point, most);
};

const takeHello = hello => {
  if (state.hello && hello.run !== state.hello.run) {
    // The proxy has restarted: numbers of flows are others now. What was seen of a flow stays.
    if (state.open) state.open.ended = true;
    state.view.flow = null;
  }
  state.hello = hello;
  if (hello.seconds) {
    // A proxy that has restarted knows less than this page.
    const first = hello.seconds.length ? hello.seconds[0].at : Infinity;
    const older = (points, before) => points.filter(({ at }) => at < before);
    state.seconds = [...older(state.seconds, first), ...hello.seconds].slice(-SECONDS);
    const firstMinute = hello.minutes.length ? hello.minutes[0].at : Infinity;
    state.minutes = [...older(state.minutes, firstMinute), ...hello.minutes].slice(-MINUTES);
  }
};

const takeFlow = (flows, at) => {
  if (!state.open || state.open.ended) return;
  if (flows.open && flows.open.id === state.open.id) {
    state.open.row = flows.open;
    if (flows.open.sampled) push(state.open.samples, [at, flows.open], SAMPLES);
  } else if (flows.open_has_ended && state.view.flow === state.open.id) {
    state.open.ended = true;
    state.view.flow = null;
  }
};

/** Opens the stream for the present view. */
export const connect = (wantsHistory = false) => {
  clearTimeout(timer);
  if (stream) stream.close();
  const opened = new EventSource(`/events?${query(wantsHistory)}`);
  stream = opened;
  const lose = () => {
    if (stream !== opened) return;
    opened.close();
    state.connection = 'lost';
    changed();
    clearTimeout(timer);
    timer = setTimeout(() => connect(true), PAUSE);
  };
  const expect = () => {
    clearTimeout(timer);
    timer = setTimeout(lose, SILENCE);
  };
  expect();
  opened.onerror = lose;
  const on = (name, take) => opened.addEventListener(name, event => {
    if (stream !== opened) return;
    expect();
    state.connection = 'live';
    take(JSON.parse(event.data));
    changed();
  });
  on('hello', takeHello);
  on('tick', tick => {
    state.tick = tick;
    extend(state.seconds, tick.point, SECONDS);
    extend(state.minutes, tick.minute, MINUTES);
    takeFlow(tick.flows, tick.point ? tick.point.at : Date.now() / 1000);
  });
};

/** Changes which flows the server sends. */
export const show = change => {
  Object.assign(state.view, change);
  changed();
  connect();
};

/** Opens a flow, by its row. */
export const openFlow = row => {
  state.open = { id: row.id, row, samples: [], ended: false };
  show({ flow: row.id });
};

export const closeFlow = () => {
  state.open = null;
  show({ flow: null });
};
