import {
  asymmetric,
  channelMax,
  defineScheme,
  float8,
  gain,
  hadamard,
  int4,
  lloydMax,
  pca,
  perChannel,
  perHead,
  perToken,
  polar,
  qjl,
  shard,
  symmetric,
  table,
  tileRotation,
  tiltFast,
  transformCode,
  uniformNormal,
  unrope,
  vq,
} from '../../dsl/index.js';

// Checked by `npm run typecheck`, never run: each line must be an error in the editor.
export function refusedByTheTypeChecker(): void {
  // @ts-expect-error a rank that is no multiple of 16
  pca({ rank: 100, bits: 4, group: 64 });
  // @ts-expect-error a width that no field has
  pca({ rank: 64, bits: 5, group: 64 });
  // @ts-expect-error a group that divides no tile
  pca({ rank: 64, bits: 4, group: 48 });
  // @ts-expect-error a u8 index cannot name 512 entries
  vq({ channels: 4, entries: 512 });
  // @ts-expect-error three channels fill no word
  vq({ channels: 3, entries: 256 });
  // @ts-expect-error a stream width that no packing has
  lloydMax({ bits: 5 });
  // @ts-expect-error a chain in the wrong order
  defineScheme({ ...shard, keys: [pca({ rank: 64, bits: 4, group: 64 }), unrope()] });
  // @ts-expect-error a chain without its last step
  defineScheme({ ...shard, values: [hadamard(), channelMax()] });
  // @ts-expect-error signs of a residual without the transform
  defineScheme({ ...int4, keys: [perToken(symmetric({ bits: 4 })), qjl()] });
  // @ts-expect-error values have no pairs
  defineScheme({ ...int4, values: [polar(), perChannel(symmetric({ bits: 4 }))] });
  // @ts-expect-error a missing field
  defineScheme({ name: 'x', keys: shard.keys, values: shard.values, sinks: 4, window: 64 });

  // @ts-expect-error a width that no field has
  symmetric({ bits: 5 });
  // @ts-expect-error a width that no field has
  asymmetric({ bits: 1 });
  // @ts-expect-error a format that OCP does not define
  float8({ format: 'e3m4' });
  // @ts-expect-error levels that are no numbers
  table({ name: 'words', levels: ['a', 'b', 'c', 'd'] });
  // @ts-expect-error channels that do not fill a word of every width
  perToken(symmetric({ bits: 4 }), { channels: 8 });
  // @ts-expect-error a block of tokens that no schedule has
  perChannel(symmetric({ bits: 4 }), { tokens: 48 });
  // @ts-expect-error a block given to what takes none
  perHead(symmetric({ bits: 4 }), { tokens: 32 });
  // @ts-expect-error a codec where a quantizer is due
  defineScheme({ ...int4, keys: [symmetric({ bits: 4 })] });
  // @ts-expect-error a quantizer of a quantizer
  perToken(perToken(symmetric({ bits: 4 })));
  // @ts-expect-error a transform after the quantizer
  defineScheme({ ...int4, values: [perToken(symmetric({ bits: 4 })), hadamard()] });
  // @ts-expect-error two steps before the quantizer
  defineScheme({ ...int4, keys: [unrope(), hadamard(), perToken(symmetric({ bits: 4 }))] });
  // @ts-expect-error values know no rotary embedding
  defineScheme({ ...int4, values: [unrope(), perToken(symmetric({ bits: 4 }))] });
  // @ts-expect-error keys of one family with values of the other
  defineScheme({ ...shard, keys: [perToken(symmetric({ bits: 4 }))] });
  // @ts-expect-error a tile that no table has
  tileRotation({ tile: 48 });
  // @ts-expect-error blocks that are not whole tiles
  transformCode({ bits: 1.5, rangeBlock: 100 });
  // @ts-expect-error a transform without tiles
  defineScheme({ ...tiltFast, keys: [unrope(), transformCode({ bits: 1.5 })] });
  // @ts-expect-error values that are not turned
  defineScheme({ ...tiltFast, values: [perToken(uniformNormal({ bits: 2 }))] });
  // @ts-expect-error a gain before what it is of
  defineScheme({ ...tiltFast, values: [hadamard(), gain(), perToken(uniformNormal({ bits: 2 }))] });
  // @ts-expect-error a quantizer where the stream takes a codec
  defineScheme({ ...int4, stream: perToken(symmetric({ bits: 4 })) });
}
