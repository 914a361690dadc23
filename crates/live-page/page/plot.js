// A plot over time, drawn as the pages of reports have theirs: `curves.js` reads values off it.

import { element, prefix } from './text.js';

const WIDTH = 2000;
const HEIGHT = 1000;
const SVG = 'http://www.w3.org/2000/svg';

/** A step of 1, 2, 2.5 or 5 times a power of ten, with which `largest` has at most `count` steps. */
const stepOf = (largest, count) => {
  if (!(largest > 0)) return 1;
  const rough = largest / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map(nice => nice * power).find(nice => nice >= rough * (1 - 1e-9)) || 10 * power;
};

const ticksTo = (step, last) => {
  const decimals = Math.max(0, [0, 1, 2, 3, 4].find(n => Math.abs((step * 10 ** n) % 1) < 1e-6) ?? 0);
  return Array.from({ length: Math.floor(last / step + 1e-9) + 1 }, (_, i) => [i * step, i ? (i * step).toFixed(decimals) : '0']);
};

/** The unit for numbers up to `largest`, and how many base units it has. */
const scaleOf = (kind, largest) => {
  if (kind === 'delay') return largest < 1 ? { per: 1e-3, unit: 'ms' } : { per: 1, unit: 's' };
  if (kind === 'count') return { per: 1, unit: '' };
  const { per, name } = prefix(largest);
  return { per, unit: name + (kind === 'rate' ? 'bit/s' : 'B') };
};

const ago = seconds => seconds === 0 ? 'now' : seconds < 60 ? `−${seconds} s` : `−${seconds / 60} min`;

/** The distance of the labels of the time axis, seconds. */
const paceOf = span => [5, 10, 15, 30, 60, 120, 300, 600, 900].find(pace => span / pace <= 6.01) || 900;

export class Plot {
  /** `kind` is rate, bytes, delay or count. */
  constructor(title, kind) {
    this.kind = kind;
    this.title = title;
    this.node = element('figure');
    this.caption = this.node.appendChild(element('figcaption'));
    this.caption.append(element('strong', '', title), this.unit = element('span'));
    this.legend = element('ul', 'legend');
    this.chart = element('div', 'chart');
    this.chart.setAttribute('role', 'img');
    this.svg = document.createElementNS(SVG, 'svg');
    this.svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute('preserveAspectRatio', 'none');
    this.grid = this.svg.appendChild(document.createElementNS(SVG, 'path'));
    this.grid.setAttribute('class', 'grid');
    this.labels = element('div');
    this.chart.append(this.labels, this.svg);
    this.node.append(this.chart);
    this.lines = [];
    // The document switches the curve after this.
    this.legend.addEventListener('click', () => setTimeout(() => this.draw()));
  }

  /** Makes a curve for each line, unless they are there already. A curve that was switched off
   * stays off while there is a legend to switch it on. */
  setLines(lines) {
    const key = JSON.stringify(lines);
    if (this.key === key) return;
    this.key = key;
    const wasOff = this.lines.filter(line => line.classList.contains('off')).map(line => line.dataset.name);
    const off = new Set(lines.length > 1 ? wasOff : []);
    this.lines.forEach(line => line.remove());
    this.legend.replaceChildren();
    this.lines = lines.map(({ name, colour, dashed }, index) => {
      const line = this.svg.appendChild(document.createElementNS(SVG, 'polyline'));
      line.setAttribute('class', `c${colour}${dashed ? ' dashed' : ''}${off.has(name) ? ' off' : ''}`);
      line.dataset.name = name;
      line.dataset.group = String(index);
      const button = element('button');
      button.type = 'button';
      button.dataset.group = String(index);
      button.setAttribute('aria-pressed', String(!off.has(name)));
      button.append(element('i', `c${colour}`), name);
      const entry = element('li');
      entry.append(button);
      this.legend.append(entry);
      return line;
    });
    if (lines.length > 1) this.chart.before(this.legend);
    else this.legend.remove();
  }

  /** Draws the last `span` seconds before `now`. Each of `lines` has a `name`, a `colour` and may
   * be `dashed`; `series` has its points [time, value]. */
  update(now, span, lines, series) {
    this.setLines(lines);
    this.last = { now, span, series };
    this.draw();
  }

  draw() {
    if (!this.last) return;
    const { now, span, series } = this.last;
    const shown = series.map(points => points.filter(([at, value]) => at >= now - span && Number.isFinite(value)));
    const visible = shown.filter((_, index) => !this.lines[index].classList.contains('off'));
    const largest = Math.max(0, ...visible.flat().map(([, value]) => value));
    const { per, unit } = scaleOf(this.kind, largest);
    const top = largest > 0 ? largest / per * 1.05 : 1;
    this.unit.textContent = unit ? `, ${unit}` : '';
    Object.assign(this.chart.dataset, { from: -span, end: 0, top, clock: now });
    const last = shown.map((points, i) => points.length ? `${this.lines[i].dataset.name} ${(points.at(-1)[1] / per).toPrecision(3)}` : '');
    this.chart.setAttribute('aria-label', `${this.title}, ${unit}. Now: ${last.filter(Boolean).join(', ')}`);
    let grid = '';
    const labels = [];
    const label = (name, side, share, text) => {
      const node = element('span', name, text);
      node.style[side] = `${share * 100}%`;
      labels.push(node);
    };
    for (const [at, text] of ticksTo(stepOf(top, 5), top)) {
      grid += `M0 ${Math.round(HEIGHT - at / top * HEIGHT)}h${WIDTH}`;
      label('y', 'bottom', at / top, text);
    }
    const pace = paceOf(span);
    for (let back = 0; back <= span; back += pace) {
      grid += `M${Math.round(WIDTH - back / span * WIDTH)} 0v${HEIGHT}`;
      label((back / pace) % 2 ? 'x odd' : 'x', 'left', 1 - back / span, ago(back));
    }
    this.grid.setAttribute('d', grid);
    this.labels.replaceChildren(...labels);
    shown.forEach((points, index) => {
      const text = points.map(([at, value]) =>
        `${Math.round((1 - (now - at) / span) * WIDTH)},${Math.round(HEIGHT - value / per / top * HEIGHT)}`);
      this.lines[index].setAttribute('points', text.join(' '));
    });
  }
}

/** Plots by name, made when they are first needed and removed when their names are gone. */
export class PlotList {
  constructor(parent) {
    this.parent = parent;
    this.plots = new Map();
  }

  /** `wanted` is a list of [name, title, kind, lines, series]. */
  update(now, span, wanted) {
    const names = new Set(wanted.map(([name]) => name));
    for (const [name, plot] of this.plots) {
      if (!names.has(name)) {
        plot.node.remove();
        this.plots.delete(name);
      }
    }
    for (const [name, title, kind, lines, series] of wanted) {
      if (!this.plots.has(name)) {
        const plot = new Plot(title, kind);
        this.plots.set(name, plot);
        this.parent.append(plot.node);
      }
      this.plots.get(name).update(now, span, lines, series);
    }
  }
}
