// How quantities are written. What a proxy says becomes text, never markup.

const PREFIXES = ['', 'k', 'M', 'G', 'T'];

/** Three significant digits: 1.23, 12.3, 123. */
export const three = value => {
  if (value === 0) return '0';
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-9));
  return value.toFixed(Math.min(digits, 3));
};

/** The decimal prefix for numbers as large as this one, and its factor. */
export const prefix = largest => {
  let power = 0;
  while (power + 1 < PREFIXES.length && largest >= 999.5 * 1000 ** power) power += 1;
  return { per: 1000 ** power, name: PREFIXES[power] };
};

const scaled = (value, unit) => {
  const { per, name } = prefix(Math.abs(value));
  return per === 1 ? `${Math.round(value)} ${unit}` : `${three(value / per)} ${name}${unit}`;
};

export const rate = bps => bps == null ? '–' : scaled(bps, 'bit/s');
export const bytes = count => scaled(count, 'B');
export const count = value => value.toLocaleString('en-US');
export const percent = share => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
export const delay = seconds => seconds === 0 ? '–' : seconds < 1 ? `${three(seconds * 1000)} ms` : `${three(seconds)} s`;

export const age = seconds => {
  const s = Math.floor(seconds);
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${s % 60}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${Math.floor(s / 60) % 60}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor(s / 3600) % 24}h`;
};

/** The limiters in the order of a path, as the proxy and as people write them. */
export const LIMITERS = ['sender', 'near_leg', 'proxy_buffer', 'far_leg', 'receiver'];
/** The causes of losses, as the proxy and as people write them. */
const CAUSES = {
  handshake: 'handshake',
  distance: 'distance',
  slow_start: 'slow start',
  control: 'congestion control',
  loss: 'loss',
  receiver_window: "the receiver's window",
  proxy_buffer: "the proxy's buffer",
  kernel_buffer: "the kernel's buffer",
  sender: 'the sender',
  other_traffic: 'other traffic',
};

/** How much of what a link allows was used, and what the rest was lost to. */
export const accountText = ({ used, lost }) => {
  const parts = lost.filter(({ share }) => share >= 0.005).map(({ to, share }) => `${CAUSES[to] ?? to} ${percent(share)}`).join(', ');
  if (used == null) return `of its time: ${parts}`;
  return `${percent(used)} of what the link allows${parts ? `; lost to: ${parts}` : ''}`;
};

export const words = name => name.replaceAll('_', ' ');

/** An element with a class and a text. */
export const element = (tag, name = '', text = '') => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.textContent = text;
  return node;
};

/** Sets a text, if it differs: an unchanged one keeps a selection. */
export const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
