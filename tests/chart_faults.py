"""What a browser can tell of a page's charts and tables: texts that are cut or lie on each other."""

# Texts of charts that are cut off by their drawing or the window, or that lie on each other; and what scrolls sideways.
FAULTS = """() => {
  const faults = [];
  const box = node => {
    const b = node.getBoundingClientRect();
    return {l: b.left, r: b.right, t: b.top, b: b.bottom};
  };
  for (const plot of document.querySelectorAll('.js-plotly-plot')) {
    if (!plot.checkVisibility({contentVisibilityAuto: true})) continue;
    const frame = box(plot.querySelector('.main-svg'));
    const place = box(plot.parentElement);
    if (frame.l < place.l - 1 || frame.r > place.r + 1) faults.push('wider than its place: ' + plot.id);
    const texts = [...plot.querySelectorAll(
      '.xtick text, .ytick text, .xtitle, .ytitle, .legendtext, .annotation-text, .cbaxis text, .cbtitle')]
      .filter(node => node.textContent.trim() && box(node).r > box(node).l);
    const boxes = texts.map(node => [node.textContent, box(node)]);
    for (const [text, b] of boxes)
      if (b.l < frame.l - 1 || b.r > frame.r + 1 || b.t < frame.t - 1 || b.b > frame.b + 1 || b.r > innerWidth + 1)
        faults.push('cut: ' + text);
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [s, a] = boxes[i], [t, b] = boxes[j];
      if (Math.min(a.r, b.r) - Math.max(a.l, b.l) > 1 && Math.min(a.b, b.b) - Math.max(a.t, b.t) > 2)
        faults.push('overlap: ' + s + ' / ' + t);
    }
  }
  for (const frame of document.querySelectorAll('.vt-table'))
    if (frame.scrollWidth > frame.clientWidth + 1) faults.push('cut table: ' + frame.textContent.slice(0, 60));
  const main = document.querySelector('[data-testid=stMain]') || document.documentElement;
  if (main.scrollWidth > main.clientWidth + 1) faults.push('the page scrolls sideways');
  return faults;
}"""

# Charts follow the width of the window a moment later: whether nothing has moved since the last look.
STILL = """() => {
  const now = [...document.querySelectorAll('.js-plotly-plot text, .vt-table')]
    .map(node => { const b = node.getBoundingClientRect(); return [b.left, b.width, b.height].join(); }).join(' ');
  const still = window.vtBefore === now;
  window.vtBefore = now;
  return still;
}"""
