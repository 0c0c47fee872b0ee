/** The report as one HTML file that fetches nothing. */
export interface Figure {
  readonly title: string;
  /** What to see. */
  readonly caption: string;
  readonly svg: string;
}

export interface Fact {
  readonly value: string;
  readonly label: string;
}

/** A text, or one with a smaller one below it. */
export type Cell = string | { readonly text: string; readonly below: string };

export interface Grid {
  readonly columns: readonly string[];
  readonly rows: readonly (readonly Cell[])[];
}

export interface Table {
  readonly title: string;
  /** How to read it. */
  readonly caption: string;
  readonly grid: Grid;
}

export interface Page {
  readonly title: string;
  readonly lead: string;
  readonly facts: readonly Fact[];
  /** What precedes the figures. */
  readonly tables: readonly Table[];
  readonly figures: readonly Figure[];
  readonly footer: string;
}

const style = `
:root { color-scheme: light dark; --ground: #fbfbfa; --card: #ffffff; --ink: #1c1f24; --muted: #68707c; --pale: #b9c0c9; --grid: #dfe2e6;
  --one: #2563c9; --two: #e0803a; --three: #3f9e78; --four: #9a6cc9; --five: #c9526a; --six: #b49a2c; --line: #e6e8eb; }
@media (prefers-color-scheme: dark) { :root { --ground: #14161a; --card: #1b1e24; --ink: #e8eaed; --muted: #9aa3af;
  --pale: #5b6470; --grid: #363b44; --one: #6ea1f5; --two: #f0a062; --three: #64c79d; --four: #bd97e6; --five: #ea8397; --six: #d9c25a;
  --line: #2a2e36; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 780px; margin: 0 auto; padding: 48px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 10px; letter-spacing: -0.01em; text-wrap: balance; }
h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0; color: var(--muted); max-width: 68ch; }
.lead { font-size: 16px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 16px 24px; margin: 28px 0 36px; padding: 0; list-style: none; }
.facts b { display: block; font-size: 26px; font-weight: 650; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.facts span { display: block; color: var(--muted); font-size: 13px; line-height: 1.4; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px; margin: 0 0 20px; }
section p { margin-bottom: 14px; }
.wide { overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { text-align: right; font-weight: 500; color: var(--muted); padding: 6px 0 6px 18px; border-bottom: 1px solid var(--grid); white-space: nowrap; }
td { text-align: right; padding: 7px 0 7px 18px; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
td small { display: block; color: var(--muted); font-size: 12.5px; }
tr:last-child td { border-bottom: 0; }
footer { color: var(--muted); font-size: 13px; margin-top: 28px; }
`;

export function escapeHtml(text: string): string {
  const entities: Readonly<Record<string, string>> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&#39;',
  };
  return text.replace(/[&<>"']/g, (character) => entities[character]!);
}

/** @param page plain text, save for the SVG of the figures */
export function renderPage(page: Page): string {
  const text = escapeHtml;
  const facts = page.facts
    .map(({ value, label }) => `<li><b>${text(value)}</b><span>${text(label)}</span></li>`)
    .join('\n');
  const tables = page.tables.map(
    ({ title, caption, grid }) =>
      `<section>\n<h2>${text(title)}</h2>\n<p>${text(caption)}</p>\n<div class="wide">${gridHtml(grid)}</div>\n</section>`,
  );
  const figures = page.figures.map(
    ({ title, caption, svg }) =>
      `<section>\n<h2>${text(title)}</h2>\n<p>${text(caption)}</p>\n<div class="wide">${svg}</div>\n</section>`,
  );
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${text(page.title)}</title>
<style>${style}</style>
<main>
<h1>${text(page.title)}</h1>
<p class="lead">${text(page.lead)}</p>
<ul class="facts">
${facts}
</ul>
${tables.join('\n')}
${figures.join('\n')}
<footer>${text(page.footer)}</footer>
</main>
</html>
`;
}

function gridHtml({ columns, rows }: Grid): string {
  const line = (tag: 'th' | 'td', cells: readonly Cell[]) =>
    `<tr>${cells.map((each) => `<${tag}>${cellText(each)}</${tag}>`).join('')}</tr>`;
  const body = rows.map((row) => line('td', row)).join('\n');
  return `<table>\n<thead>${line('th', columns)}</thead>\n<tbody>\n${body}\n</tbody>\n</table>`;
}

function cellText(cell: Cell): string {
  return typeof cell === 'string'
    ? escapeHtml(cell)
    : `${escapeHtml(cell.text)}<small>${escapeHtml(cell.below)}</small>`;
}
