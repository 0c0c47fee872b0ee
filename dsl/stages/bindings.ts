import type { CacheGeometry } from '../geometry.js';
import type { BindingDescriptor } from '../stage.js';

type Element = BindingDescriptor['element'];

/** A buffer the kernel only reads. */
export function reads(name: string, element: Element, holds: string): BindingDescriptor {
  return { name, access: 'read', element, holds };
}

/** A buffer the kernel writes, or reads and writes. */
export function writes(name: string, element: Element, holds: string): BindingDescriptor {
  return { name, access: 'read_write', element, holds };
}

/** The record of the one sequence that an encode stage works on. */
export const sequenceRecord = reads('sequence', 'u32', 'record of this sequence: lengths, then part offsets in words');
export const cacheRead = reads('cache', 'u32', 'all compressed parts of all sequences; offsets come from the record');
export const cacheWrite = writes('cache', 'u32', 'all compressed parts of all sequences; offsets come from the record');
export const tables = reads('tables', 'f32', 'stream levels, then fine and coarse angles as (cosine, sine)');

/** What every channel of a centred key is multiplied by before it is coded. */
export function keyWeights(g: CacheGeometry): BindingDescriptor {
  return reads('weights', 'f32', `[${g.width}], both channels of a pair alike`);
}

/** How much every token of the middle counts in the fit of the key basis. */
export const tokenWeights = reads('token_weights', 'f32', '[middle tokens], above 0, their mean 1');

/** How much every token of a KV head counts in the fit of the value codebook. */
export function valueWeights(g: CacheGeometry): BindingDescriptor {
  return reads('value_weights', 'f32', `[middle tokens][${g.kvHeads} KV heads], at least 1/2`);
}
