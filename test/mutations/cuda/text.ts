import type { Mutant } from '../mutant.js';

/** A barrier taken out, found by the comment that stands behind it. */
export function without(comment: string): Mutant {
  const text = `__syncthreads();  // ${comment}\n`;
  return { name: `no barrier: ${comment}`, text, instead: '\n', by: 'race or unwritten' };
}

/** As `without`, where several barriers have the comment: `before` is the line in front of it. */
export function withoutAfter(before: string, comment: string): Mutant {
  const text = `${before}\n  __syncthreads();  // ${comment}\n`;
  return {
    name: `no barrier after ${before.trim()}: ${comment}`,
    text,
    instead: `${before}\n`,
    by: 'race or unwritten',
  };
}

/** A change that the comparison with float64 reports, unless another reporter is named. */
export function changed(name: string, text: string, instead: string, by: Mutant['by'] = 'reference'): Mutant {
  return { name, text, instead, by };
}
