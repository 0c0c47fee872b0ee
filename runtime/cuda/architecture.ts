import { type Architecture, architectures } from '../../dsl/stage.js';

/** Number and variant of an architecture: `sm_90a` is 90 and a. */
function partsOf(architecture: string): { readonly number: number; readonly variant: string } {
  const [, digits, variant] = /^sm_(\d+)([a-z]?)$/.exec(architecture)!;
  return { number: Number(digits), variant: variant! };
}

/** What machine code is made for on a device: all of its instructions on 9.0, whose own ones only sm_90a has. */
export function codeArchitecture({ major, minor }: { readonly major: number; readonly minor: number }): string {
  return major === 9 && minor === 0 ? 'sm_90a' : `sm_${major}${minor}`;
}

/**
 * The architectures whose kernels run on a device, lowest first: text for one compiles for every later one, except
 * that a variant's is for exactly that one.
 */
export function runnableArchitectures(device: {
  readonly major: number;
  readonly minor: number;
}): readonly Architecture[] {
  const own = device.major * 10 + device.minor;
  return architectures.filter((name) => {
    const { number, variant } = partsOf(name);
    return variant === '' ? number <= own : number === own;
  });
}
