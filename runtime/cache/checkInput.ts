import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';

export interface WholeNumber {
  readonly at: string;
  readonly least: number;
  readonly most: number;
  /** What the bounds are, in brackets after them. */
  readonly bounds?: string;
  readonly hint: string;
  readonly code?: ErrorCode;
}

/** @throws KvforgeError `wrong-use` (or `code`) for anything but a whole number in range: types do not reach everyone */
export function checkWhole(value: unknown, { at, least, most, bounds, hint, code = 'wrong-use' }: WholeNumber): void {
  if (Number.isInteger(value) && (value as number) >= least && (value as number) <= most) return;
  const expected = `a whole number from ${least} to ${most}${bounds === undefined ? '' : ` (${bounds})`}`;
  throw new KvforgeError(code, { at, expected, received: shown(value), hint });
}

/** @throws KvforgeError `wrong-use` for splits that no attention has */
export function checkSplits(splits: unknown): void {
  checkWhole(splits, { at: 'splits', least: 1, most: 1024, hint: 'Leave it out for the default.' });
}

/** @throws KvforgeError `wrong-use` when a caller in plain JavaScript left an argument out */
export function checkObject(value: unknown, at: string, expected: string): void {
  if (typeof value === 'object' && value !== null) return;
  throw new KvforgeError('wrong-use', { at, expected, received: shown(value), hint: 'Pass it as the types say.' });
}

/** @throws KvforgeError `wrong-use` for anything but kernels on a device: those that `generate` gives are on none yet */
export function checkLoaded(kernels: unknown): void {
  const { device, geometry, manifest } = (kernels ?? {}) as Readonly<Record<string, unknown>>;
  if (isObject(device) && isObject(geometry)) return;
  const unloaded = isObject(geometry) && isObject(manifest);
  throw new KvforgeError('wrong-use', {
    at: 'kernels',
    expected: 'kernels that LoadedKernels.load gave',
    received: unloaded ? 'generated ones, which no device has loaded' : shown(kernels),
    hint: unloaded
      ? 'Load them first: await LoadedKernels.load(device, kernels).'
      : 'Pass what await LoadedKernels.load(device, generated) gives.',
  });
}

/** @throws KvforgeError `wrong-use` for anything but kernels of a scheme on a device, as those of `generateFp16` have none */
export function checkOfScheme(kernels: unknown): void {
  checkLoaded(kernels);
  if ('scheme' in (kernels as { readonly geometry: object }).geometry) return;
  throw new KvforgeError('wrong-use', {
    at: 'kernels',
    expected: 'kernels of a scheme, which generate gives',
    received: 'those of uncompressed attention',
    hint: 'Give these to Fp16Attention.open.',
  });
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null;
}

/** @throws KvforgeError `wrong-use` unless it is one source, a sequence, for each of the sequences */
export function checkSequences(sources: unknown, sequences: number): void {
  if (!Array.isArray(sources) || sources.length !== sequences) {
    throw new KvforgeError('wrong-use', {
      at: 'sources',
      expected: `a list of ${sequences} sequences`,
      received: Array.isArray(sources) ? `one of ${sources.length}` : shown(sources),
      hint: 'Name a source for every sequence; its own number leaves it as it is.',
    });
  }
  for (let i = 0; i < sequences; i++) {
    checkWhole(sources[i], {
      at: `sources[${i}]`,
      least: 0,
      most: sequences - 1,
      hint: 'Name a sequence of the cache.',
    });
  }
}

/** A value as an error shows it: a text with its quotes, and of an object no more than that it is one. */
export function shown(value: unknown): string {
  if (value instanceof Promise) return 'a promise, which was not awaited';
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'an object';
  if (typeof value === 'function') return 'a function';
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
