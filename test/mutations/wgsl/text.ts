import type { Mutant } from '../mutant.js';

/** A barrier taken out, found by the comment line in front of it. */
export function without(comment: string, indent = 4): Mutant {
  const text = `// ${comment}\n${' '.repeat(indent)}workgroupBarrier();\n`;
  return { name: `no barrier: ${comment}`, text, instead: '\n', by: 'reference' };
}

/** A change that the comparison with float64 reports, unless the compiler does. */
export function changed(name: string, text: string, instead: string, by: Mutant['by'] = 'reference'): Mutant {
  return { name, text, instead, by };
}

/** A barrier taken out, found by the comment that stands behind it. */
export function withoutBefore(comment: string): Mutant {
  const text = `workgroupBarrier();  // ${comment}\n`;
  return { name: `no barrier: ${comment}`, text, instead: '\n', by: 'reference' };
}
