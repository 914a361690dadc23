// Shows the values of plots under the pointer, zooms into the part over which the mouse is dragged,
// and switches curves on and off in their legends. Without it the page has the same content. Plots
// may be added and redrawn at any time; what redraws them dispatches the event "redrawn" at the
// window.
(() => {
  const ROWS = 10;
  const parsed = new WeakMap();
  const readers = new WeakMap();
  let under = null;
  const add = (parent, tag, name, text) => {
    const node = parent.appendChild(document.createElement(tag));
    node.className = name;
    node.textContent = text || '';
    return node;
  };
  const said = value => value === 0 ? '0' : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
  const readerOf = chart => {
    if (!readers.has(chart)) readers.set(chart, { cursor: add(chart, 'div', 'cursor'), read: add(chart, 'div', 'read') });
    return readers.get(chart);
  };
  const pointsOf = line => {
    const text = line.getAttribute('points') || '';
    if (!parsed.has(line) || parsed.get(line).text !== text) {
      parsed.set(line, { text, points: text.trim().split(' ').map(pair => pair.split(',').map(Number)) });
    }
    return parsed.get(line).points;
  };
  // The part of its horizontal axis that a chart shows.
  const parts = new WeakMap();
  const shown = chart => parts.get(chart) || [0, 1];
  const charts = () => [...document.querySelectorAll('.chart')];
  const hide = () => {
    under = null;
    charts().filter(chart => readers.has(chart)).forEach(chart => {
      const { cursor, read } = readers.get(chart);
      cursor.hidden = read.hidden = true;
    });
  };
  // The value at a share of an axis. A logarithmic one may have zero before its first value.
  const valueAt = (from, end, zeroPart, share) => {
    if (zeroPart === undefined) return from + share * (end - from);
    return share < zeroPart / 2 ? 0 : from * Math.pow(end / from, Math.max(0, share - zeroPart) / (1 - zeroPart));
  };
  // Where the pointer is: seconds since the start, another quantity, or the time of the day.
  const place = ({ end, from = 0, unit = ' s', clock, log }, share) => {
    const at = valueAt(+from, +end, log && +log, share);
    if (log) return said(at) + unit;
    return clock ? new Date((+clock + at) * 1000).toLocaleTimeString() : at.toFixed(2) + unit;
  };
  const show = () => {
    const { chart, x } = under;
    const box = chart.querySelector('svg').getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (x - box.left) / box.width));
    const [left, right] = shown(chart);
    const share = left + part * (right - left);
    charts().forEach(other => {
      const { cursor, read } = readerOf(other);
      cursor.hidden = false;
      cursor.style.left = part * 100 + '%';
      read.hidden = true;
    });
    // A plot over time begins at zero in both directions.
    const { top, bottom = 0, logUp, reach = 20 } = chart.dataset;
    const { read } = readerOf(chart);
    read.replaceChildren();
    const head = add(add(read, 'div', ''), 'span', '', place(chart.dataset, share));
    const near = [...chart.querySelectorAll('polyline:not(.off, .whisker)')].map(line => {
      const [x, y] = pointsOf(line).reduce((a, b) => Math.abs(b[0] - share * 2000) < Math.abs(a[0] - share * 2000) ? b : a);
      const value = valueAt(+bottom, +top, logUp && +logUp, 1 - y / 1000);
      return { name: line.dataset.name, colour: line.classList[0], x, off: Math.abs(x - share * 2000), value };
    }).filter(({ off }) => off < reach * (right - left));
    // Single points are read from far, and say where they are.
    if (reach > 20 && near.length) head.textContent = place(chart.dataset, near[0].x / 2000);
    near.slice(0, ROWS).forEach(({ name, colour, value }) => {
      const row = add(read, 'div', colour);
      add(row, 'span', '', name);
      add(row, 'span', '', said(value));
    });
    if (near.length > ROWS) add(read, 'div', '', 'and ' + (near.length - ROWS) + ' more');
    read.style.left = part > 0.5 ? '0.5rem' : 'auto';
    read.style.right = part > 0.5 ? 'auto' : '0.5rem';
    read.hidden = near.length === 0;
  };
  const point = event => {
    const chart = event.target.closest && event.target.closest('.chart');
    if (!chart) return under && hide();
    under = { chart, x: event.clientX };
    show();
  };
  document.addEventListener('pointermove', point);
  document.addEventListener('pointerdown', point);

  // Plots of a section have one horizontal axis, and zoom together.
  const zoom = (chart, [left, right]) => chart.closest('.plots').querySelectorAll('.chart[data-zoom]').forEach(other => {
    const whole = left === 0 && right === 1;
    parts.set(other, [left, right]);
    other.classList.toggle('zoomed', !whole);
    other.querySelector('svg').setAttribute('viewBox', `${left * 2000} 0 ${(right - left) * 2000} 1000`);
    other.querySelectorAll('.x.now').forEach(tick => tick.remove());
    other.querySelectorAll('.x').forEach(tick => { tick.hidden = !whole; });
    if (whole) return;
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      add(other, 'span', 'x now', place(other.dataset, left + part * (right - left))).style.left = part * 100 + '%';
    }
  });
  let drag = null;
  const partOf = (chart, x) => {
    const box = chart.querySelector('svg').getBoundingClientRect();
    return Math.min(1, Math.max(0, (x - box.left) / box.width));
  };
  document.addEventListener('pointerdown', event => {
    const chart = event.pointerType === 'mouse' && event.button === 0 && event.target.closest && event.target.closest('.plots .chart[data-zoom]');
    if (!chart) return;
    event.preventDefault();
    drag = { chart, from: partOf(chart, event.clientX), mark: add(chart, 'div', 'marked') };
  });
  document.addEventListener('pointermove', event => {
    if (!drag) return;
    const ends = [drag.from, partOf(drag.chart, event.clientX)].sort((a, b) => a - b);
    drag.mark.style.left = ends[0] * 100 + '%';
    drag.mark.style.width = (ends[1] - ends[0]) * 100 + '%';
  });
  document.addEventListener('pointerup', event => {
    if (!drag) return;
    const { chart, from, mark } = drag;
    drag = null;
    mark.remove();
    const [left, right] = shown(chart);
    const ends = [from, partOf(chart, event.clientX)].sort((a, b) => a - b).map(part => left + part * (right - left));
    if (ends[1] - ends[0] > 0.02 * (right - left)) zoom(chart, ends);
  });
  document.addEventListener('dblclick', event => {
    const chart = event.target.closest && event.target.closest('.plots .chart[data-zoom]');
    if (chart) zoom(chart, [0, 1]);
  });
  document.documentElement.addEventListener('pointerleave', hide);
  window.addEventListener('redrawn', () => { if (under) document.contains(under.chart) ? show() : hide(); });

  // An entry of a legend stands for the curves of its figure that have the same group, or of all
  // figures of a section whose plots are shown together. There a click shows that curve alone.
  document.querySelectorAll('.legend li[data-group]').forEach(entry => {
    const button = document.createElement('button');
    button.type = 'button';
    button.dataset.group = entry.dataset.group;
    button.setAttribute('aria-pressed', 'true');
    button.append(...entry.childNodes);
    entry.append(button);
  });
  document.addEventListener('click', event => {
    const button = event.target.closest && event.target.closest('.legend button');
    if (!button) return;
    const together = button.closest('[data-together]');
    const buttons = [...button.closest('.legend').querySelectorAll('button')];
    const isOn = other => other.getAttribute('aria-pressed') === 'true';
    const isAlone = isOn(button) && buttons.every(other => other === button || !isOn(other));
    const next = other => {
      if (!together || event.shiftKey) return other === button ? !isOn(other) : isOn(other);
      return isAlone || other === button;
    };
    const on = new Map(buttons.map(other => [other.dataset.group, next(other)]));
    buttons.forEach(other => other.setAttribute('aria-pressed', String(on.get(other.dataset.group))));
    [...(together || button.closest('figure')).querySelectorAll('polyline')]
      .filter(line => on.has(line.dataset.group))
      .forEach(line => line.classList.toggle('off', !on.get(line.dataset.group)));
  });
})();
