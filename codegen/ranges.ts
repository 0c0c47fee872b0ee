/** What values integers of a device function can take, as far as the kernel's numbers tell. */
import type { Expression, For } from './ir.js';

/** Least and greatest value. */
export type Range = readonly [number, number];

export const typeRanges: Readonly<Record<'i32' | 'u32', Range>> = {
  i32: [-(2 ** 31), 2 ** 31 - 1],
  u32: [0, 2 ** 32 - 1],
};

/** The range of an integer expression; `names` holds loop variables and constants that rest on them. */
export function rangeOf(expression: Expression, names: ReadonlyMap<string, Range>): Range {
  const { type } = expression;
  const whole = type === 'i32' || type === 'u32' ? typeRanges[type] : typeRanges.i32;
  const found = narrowed(expression, names);
  // Beyond its type a number wraps around: it can then be anything.
  return found && found[0] >= whole[0] && found[1] <= whole[1] ? found : whole;
}

function narrowed(expression: Expression, names: ReadonlyMap<string, Range>): Range | undefined {
  switch (expression.kind) {
    case 'literal':
      return typeof expression.value === 'number' ? [expression.value, expression.value] : undefined;
    case 'name':
      return names.get(expression.name);
    case 'convert': {
      const from = expression.operand.type;
      return from === 'i32' || from === 'u32' ? rangeOf(expression.operand, names) : undefined;
    }
    case 'select':
      return hull([...rangeOf(expression.yes, names), ...rangeOf(expression.no, names)]);
    case 'intrinsic': {
      const { name } = expression;
      if (name !== 'min' && name !== 'max') return undefined;
      const ranges = expression.arguments.map((one) => rangeOf(one, names));
      return [Math[name](...ranges.map(([low]) => low)), Math[name](...ranges.map(([, high]) => high))];
    }
    case 'binary':
      break;
    default:
      return undefined;
  }
  const [a, b] = rangeOf(expression.left, names);
  const [c, d] = rangeOf(expression.right, names);
  switch (expression.operator) {
    case '+':
      return [a + c, b + d];
    case '-':
      return [a - d, b - c];
    case '*':
      return hull([a * c, a * d, b * c, b * d]);
    case '/':
      return a >= 0 && c > 0 ? [Math.floor(a / d), Math.floor(b / c)] : undefined;
    case '%':
      return a >= 0 && c > 0 ? [0, Math.min(b, d - 1)] : undefined;
    case '>>':
      return a >= 0 && c === d && c >= 0 && c < 32 ? [Math.floor(a / 2 ** c), Math.floor(b / 2 ** c)] : undefined;
    case '<<':
      return a >= 0 && c === d && c >= 0 && c < 32 ? [a * 2 ** c, b * 2 ** c] : undefined;
    case '&':
      return a >= 0 && c >= 0 ? [0, Math.min(b, d)] : undefined;
    default:
      return undefined;
  }
}

function hull(values: readonly number[]): Range {
  return [Math.min(...values), Math.max(...values)];
}

/** How often the body runs; undefined when it depends on an outer loop. */
export function tripCount({ start, bound, step, comparison }: For): number | undefined {
  if (start.kind !== 'literal' || bound.kind !== 'literal' || step.kind !== 'literal') return undefined;
  const [from, to, by] = [Number(start.value), Number(bound.value), Number(step.value)];
  const distance = comparison.startsWith('<') ? to - from : from - to;
  return Math.max(0, comparison.endsWith('=') ? Math.floor(distance / by) + 1 : Math.ceil(distance / by));
}

export interface LoopRange {
  /** Values of the variable in the body. */
  readonly inside: Range;
  /** The furthest value that a turn may leave it at. */
  readonly after: number;
}

/** Where the variable of a loop goes. */
export function loopRange(loop: For, names: ReadonlyMap<string, Range>): LoopRange {
  const [start, bound, step] = [loop.start, loop.bound, loop.step].map((one) => rangeOf(one, names));
  const upward = loop.comparison.startsWith('<');
  const strict = loop.comparison.endsWith('=') ? 0 : 1;
  const trips = tripCount(loop);
  if (trips !== undefined) {
    const [first, by] = [start![0], upward ? step![0] : -step![0]];
    const last = first + Math.max(0, trips - 1) * by;
    return { inside: upward ? [first, last] : [last, first], after: first + trips * by };
  }
  if (upward) {
    const last = bound![1] - strict;
    return { inside: [start![0], Math.max(start![0], last)], after: last + step![1] };
  }
  const last = bound![0] + strict;
  return { inside: [Math.min(start![1], last), start![1]], after: last - step![1] };
}

/** What is wrong with a loop whose variable would pass the end of its type: it wraps around there, and never ends. */
export function endlessLoop(
  loop: For,
  names: ReadonlyMap<string, Range>,
): { readonly received: string; readonly hint: string } | undefined {
  const { type, variable } = loop;
  const [low, high] = typeRanges[type];
  const { after } = loopRange(loop, names);
  if (after >= low && after <= high) return undefined;
  const known = tripCount(loop) !== undefined;
  return {
    received: `${variable}, ${type === 'i32' ? 'an' : 'a'} ${type} that ${known ? 'goes' : 'may go'} on to ${after} after its last turn`,
    hint:
      type === 'u32' && after < low
        ? `Drop the u32: a loop that counts down is an i32, read as u32(${variable}).`
        : 'A device wraps around there: end the loop earlier, or take another step.',
  };
}
