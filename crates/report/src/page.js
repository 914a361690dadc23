// Reads values off the plots under the pointer. The page says everything without it.
(() => {
  const add = (parent, tag, name, text) => {
    const node = parent.appendChild(document.createElement(tag));
    node.className = name;
    node.textContent = text || '';
    return node;
  };
  const ROWS = 10;
  const said = value => value === 0 ? '0' : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
  const charts = [...document.querySelectorAll('.chart')].map(chart => ({
    chart,
    svg: chart.querySelector('svg'),
    cursor: add(chart, 'div', 'cursor'),
    read: add(chart, 'div', 'read'),
    lines: [...chart.querySelectorAll('polyline')].map(line => ({
      name: line.dataset.name,
      colour: line.classList[0],
      points: line.getAttribute('points').split(' ').map(pair => pair.split(',').map(Number)),
    })),
  }));
  const hide = () => charts.forEach(({ cursor, read }) => { cursor.hidden = read.hidden = true; });
  const show = ({ chart, svg, read, lines }, event) => {
    const box = svg.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    charts.forEach(({ cursor }) => { cursor.hidden = false; cursor.style.left = share * 100 + '%'; });
    charts.forEach(other => { other.read.hidden = true; });
    // A plot over time begins at zero in both directions.
    const { end, top, from = 0, bottom = 0, unit = ' s' } = chart.dataset;
    read.replaceChildren();
    add(add(read, 'div', ''), 'span', '', (+from + share * (end - from)).toFixed(2) + unit);
    const near = lines.map(({ name, colour, points }) => {
      const [x, y] = points.reduce((a, b) => Math.abs(b[0] - share * 2000) < Math.abs(a[0] - share * 2000) ? b : a);
      return { name, colour, off: Math.abs(x - share * 2000), value: +bottom + (1 - y / 1000) * (top - bottom) };
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
  hide();
  charts.forEach(plot => {
    plot.chart.addEventListener('pointermove', event => show(plot, event));
    plot.chart.addEventListener('pointerleave', hide);
  });
})();
