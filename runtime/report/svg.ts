/** Colours of a report by role. Charts name the role; the page gives it a value for light and for dark. */
export const colorRoles = [
  'card',
  'ink',
  'muted',
  'pale',
  'grid',
  'one',
  'two',
  'three',
  'four',
  'five',
  'six',
] as const;
export type ColorRole = (typeof colorRoles)[number];

// Vega takes colours, not CSS variables, so each role travels as a colour that no chart uses otherwise.
const marker = (index: number) => `#0${index.toString(16)}f00f`;

/** The colour by which a chart names a role. */
export function color(role: ColorRole): string {
  return marker(colorRoles.indexOf(role));
}

const config = {
  background: 'transparent',
  font: 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif',
  view: { stroke: null },
  axis: {
    labelColor: color('muted'),
    titleColor: color('muted'),
    titleFontWeight: 'normal',
    titleFontSize: 12,
    labelFontSize: 11,
    domainColor: color('grid'),
    tickColor: color('grid'),
    gridColor: color('grid'),
    titlePadding: 8,
  },
  legend: {
    labelColor: color('ink'),
    labelFontSize: 12,
    title: null,
    labelLimit: 400,
    orient: 'top',
    symbolType: 'square',
    offset: 8,
  },
  header: { labelColor: color('ink'), labelFontSize: 12, title: null, labelFontWeight: 600 },
  text: { color: color('ink'), fontSize: 12 },
};

/**
 * Draws a Vega-Lite chart as SVG, without a browser.
 *
 * @param name tells the chart from others on the page
 */
export async function drawChart(name: string, specification: object): Promise<string> {
  const [vegaLite, vega] = await Promise.all([import('vega-lite'), import('vega')]);
  const { spec } = vegaLite.compile({ config, padding: 4, ...specification } as Parameters<typeof vegaLite.compile>[0]);
  const view = new vega.View(vega.parse(spec), { renderer: 'none', logLevel: vega.Error });
  const drawn = await view.toSVG();
  view.finalize();
  // Charts of one page share its ids.
  const own = drawn.replace(/\b(id="|url\(#|href="#)(clip|gradient)/g, `$1${name}-$2`);
  return colorRoles.reduce((svg, role, index) => svg.replaceAll(marker(index), `var(--${role})`), own);
}
