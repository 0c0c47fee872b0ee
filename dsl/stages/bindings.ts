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
