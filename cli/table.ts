import Table from 'cli-table3';
import pc from 'picocolors';

export interface Column {
  readonly title: string;
  /** Numbers stand at the right. */
  readonly align?: 'left' | 'right';
}

/** A table without lines, its titles dim on a terminal. */
export function table(columns: readonly Column[], rows: readonly (readonly string[])[], colors: boolean): string {
  const { dim } = pc.createColors(colors);
  const nothing = Object.fromEntries(
    ['top', 'top-mid', 'top-left', 'top-right', 'bottom', 'bottom-mid', 'bottom-left', 'bottom-right', 'left']
      .concat(['left-mid', 'mid', 'mid-mid', 'right', 'right-mid'])
      .map((name) => [name, '']),
  );
  const made = new Table({
    head: columns.map(({ title }) => dim(title)),
    colAligns: columns.map(({ align }) => align ?? 'left'),
    chars: { ...nothing, middle: '  ' },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0 },
  });
  for (const row of rows) made.push([...row]);
  return `${made
    .toString()
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')}\n`;
}

/** Digits in groups of three. */
export function grouped(value: number): string {
  return value.toLocaleString('en-US');
}

/** A duration for people. */
export function duration(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 10_000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
