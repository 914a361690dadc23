// Reads values off the plots under the pointer, and switches curves on and off in their legends. The
// page says everything without it. Plots may be added and redrawn at any time; who redraws them
// dispatches the event "redrawn" at the window.
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
  const charts = () => [...document.querySelectorAll('.chart')];
  const hide = () => {
    under = null;
    charts().filter(chart => readers.has(chart)).forEach(chart => {
      const { cursor, read } = readers.get(chart);
      cursor.hidden = read.hidden = true;
    });
  };
  // Where the pointer is: seconds since the start, another quantity, or the time of the day.
  const place = ({ end, from = 0, unit = ' s', clock }, share) => {
    const at = +from + share * (end - from);
    return clock ? new Date((+clock + at) * 1000).toLocaleTimeString() : at.toFixed(2) + unit;
  };
  const show = () => {
    const { chart, x } = under;
    const box = chart.querySelector('svg').getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (x - box.left) / box.width));
    charts().forEach(other => {
      const { cursor, read } = readerOf(other);
      cursor.hidden = false;
      cursor.style.left = share * 100 + '%';
      read.hidden = true;
    });
    // A plot over time begins at zero in both directions.
    const { top, bottom = 0 } = chart.dataset;
    const { read } = readerOf(chart);
    read.replaceChildren();
    add(add(read, 'div', ''), 'span', '', place(chart.dataset, share));
    const near = [...chart.querySelectorAll('polyline:not(.off)')].map(line => {
      const [x, y] = pointsOf(line).reduce((a, b) => Math.abs(b[0] - share * 2000) < Math.abs(a[0] - share * 2000) ? b : a);
      const value = +bottom + (1 - y / 1000) * (top - bottom);
      return { name: line.dataset.name, colour: line.classList[0], off: Math.abs(x - share * 2000), value };
    }).filter(({ off }) => off < 20);
    near.slice(0, ROWS).forEach(({ name, colour, value }) => {
      const row = add(read, 'div', colour);
      add(row, 'span', '', name);
      add(row, 'span', '', said(value));
    });
    if (near.length > ROWS) add(read, 'div', '', 'and ' + (near.length - ROWS) + ' more');
    read.style.left = share > 0.5 ? '0.5rem' : 'auto';
    read.style.right = share > 0.5 ? 'auto' : '0.5rem';
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
  document.documentElement.addEventListener('pointerleave', hide);
  window.addEventListener('redrawn', () => { if (under) document.contains(under.chart) ? show() : hide(); });

  // An entry of a legend stands for the curves of its figure that have the same group.
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
    const off = button.getAttribute('aria-pressed') === 'true';
    button.setAttribute('aria-pressed', String(!off));
    [...button.closest('figure').querySelectorAll('polyline')]
      .filter(line => line.dataset.group === button.dataset.group)
      .forEach(line => line.classList.toggle('off', off));
  });
})();
