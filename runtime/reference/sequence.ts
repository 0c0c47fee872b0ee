import { decodeScalar, type ScalarParts } from './scalar.js';
import type { Cache } from './shapes.js';
import { decodeShard, type ShardParts } from './shard.js';

/** One sequence's cache in one layer, with codes of either family. */
export type CodedSequence = ShardParts | ScalarParts;

export function isScalarParts(parts: CodedSequence): parts is ScalarParts {
  return 'keys' in parts.middle;
}

/** The cache that a coded sequence stands for. */
export function decodeSequence(parts: CodedSequence): Cache {
  return isScalarParts(parts) ? decodeScalar(parts) : decodeShard(parts);
}
