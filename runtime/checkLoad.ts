import type { Manifest } from '../codegen/manifest.js';
import { KvforgeError } from '../dsl/errors.js';
import { shown } from './cache/checkInput.js';
import type { Device } from './device.js';

/** What a generator gives, as far as loading asks; `Sizes` is what the kernels were specialised to. */
export interface Loadable<Sizes> {
  readonly geometry: Sizes;
  readonly manifest: Pick<Manifest, 'kernels' | 'target'>;
  readonly files: ReadonlyMap<string, string>;
}

/** @throws KvforgeError `wrong-use` for what `LoadedKernels.load` cannot take: types do not reach everyone */
export function checkLoad(device: Device, generated: Loadable<unknown>, entries?: readonly string[]): void {
  const swapped = isGenerated(device) && isDevice(generated);
  const hint = swapped ? 'The device comes first.' : 'Call it as LoadedKernels.load(device, await generate(...)).';
  if (!isDevice(device)) {
    const received = isGenerated(device) ? 'generated kernels' : shown(device);
    throw new KvforgeError('wrong-use', { at: 'device', expected: 'an open device', received, hint });
  }
  if (!isGenerated(generated)) {
    const received = isDevice(generated) ? 'a device' : shown(generated);
    throw new KvforgeError('wrong-use', { at: 'generated', expected: 'kernels that generate gave', received, hint });
  }
  const { kernels, target } = generated.manifest;
  if (target.language !== device.target) {
    throw new KvforgeError('wrong-use', {
      at: device.description,
      expected: `kernels in ${device.target}`,
      received: `kernels in ${target.language}`,
      hint: `Generate with target ${device.target}.`,
    });
  }
  if (entries === undefined) return;
  if (!Array.isArray(entries)) {
    throw new KvforgeError('wrong-use', {
      at: 'entries',
      expected: 'a list of entries',
      received: shown(entries),
      hint: 'Leave it out to load all kernels.',
    });
  }
  const known = kernels.map(({ entry }) => entry);
  for (const [index, entry] of entries.entries()) {
    if (known.includes(entry)) continue;
    throw new KvforgeError('wrong-use', {
      at: `entries[${index}]`,
      expected: `one of ${known.join(', ')}`,
      received: shown(entry),
      hint: 'Leave the list out to load all kernels.',
    });
  }
}

function isDevice(value: unknown): boolean {
  const { target, compile } = (value ?? {}) as Partial<Device>;
  return typeof target === 'string' && typeof compile === 'function';
}

function isGenerated(value: unknown): boolean {
  const { manifest, files, geometry } = (value ?? {}) as Partial<Loadable<unknown>>;
  return Array.isArray(manifest?.kernels) && files instanceof Map && typeof geometry === 'object';
}
