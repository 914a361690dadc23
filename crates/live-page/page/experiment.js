// The experiment: how much sooner split connections were than unsplit ones.

import { count, delay, element, setText } from './text.js';

const find = id => document.getElementById(id);

const time = seconds => seconds == null ? '–' : delay(seconds);

/** What a comparison says. */
const VERDICTS = { too_few: 'too few', faster: 'split is faster', slower: 'split is slower', unclear: 'may be chance', unlike: 'not comparable' };

/** The scale of the intervals: a power of two that holds all of them. */
const scale = rows => {
  const ends = rows.flatMap(({ gain }) => gain ? [Math.abs(Math.log2(gain.low)), Math.abs(Math.log2(gain.high))] : []);
  return Math.min(6, Math.max(1, Math.ceil(Math.max(0, ...ends))));
};

/** A row's interval as a bar around "as fast as unsplit". */
const interval = () => {
  const bar = element('div', 'interval');
  bar.append(element('b'), element('i'));
  return bar;
};

const place = (bar, gain, most) => {
  bar.hidden = !gain;
  if (!gain) return;
  const at = ratio => Math.min(100, Math.max(0, 50 + Math.log2(ratio) / most * 50));
  const [range, point] = bar.children;
  range.style.left = `${at(gain.low)}%`;
  range.style.width = `${Math.max(0.5, at(gain.high) - at(gain.low))}%`;
  point.style.left = `${at(gain.ratio)}%`;
};

/** Makes as many rows as there are comparisons. */
const prepare = (body, length) => {
  while (body.children.length > length) body.lastElementChild.remove();
  while (body.children.length < length) {
    const row = element('tr');
    const head = element('th', 'words');
    head.scope = 'row';
    row.append(head, element('td', 'words'), ...Array.from({ length: 5 }, () => element('td')), element('td', 'words'), element('td'));
    row.lastElementChild.append(interval());
    body.append(row);
  }
};

export const drawExperiment = view => {
  find('experiment-section').hidden = !view;
  if (!view) return;
  const rows = view.rows.map((row, index) => ({ ...row, verdict: view.verdicts[index] })).filter(({ unsplit, split }) => unsplit + split > 0);
  const most = scale(rows);
  const body = find('experiment');
  prepare(body, rows.length);
  rows.forEach((row, index) => {
    const { gain } = row;
    const texts = [
      row.prefix ?? 'all',
      row.size ?? 'all',
      count(row.unsplit),
      count(row.split),
      time(row.unsplit_s),
      time(row.split_s),
      gain ? `${gain.ratio.toFixed(2)} (${gain.low.toFixed(2)} … ${gain.high.toFixed(2)})` : '–',
      VERDICTS[row.verdict],
    ];
    const cells = body.children[index].children;
    texts.forEach((text, at) => setText(cells[at], text));
    place(cells[texts.length].firstElementChild, gain, most);
  });
  const groups = view.groups.map(({ group, begun, complete, open, reset, unfinished, unanswered, empty, suspicious, missed }) =>
    `${group}: ${count(begun)} connections, ${count(complete)} with a time, ${count(open)} open, ${count(reset)} reset, ` +
    `${count(unfinished)} unfinished, ${count(unanswered)} unanswered, ${count(empty)} empty` +
    (suspicious > 0 ? `, ${count(suspicious)} suspicious` : '') + (missed > 0 ? `, ${count(missed)} missed` : ''));
  const lost = view.lost > 0 ? [`packets were lost ${count(view.lost)} times`] : [];
  const failure = view.failure ? [`nothing is measured: ${view.failure}`] : [];
  setText(find('experiment-state'), [...failure, `1 in ${count(view.one_in)} connections passes unsplit`, ...groups, ...lost].join('. ') + '.');
  setText(find('experiment-scale'), `÷${2 ** most} … 1 … ×${2 ** most}`);
};
