import { describe, expect, it } from 'vitest';
import { nibbleByte, normPlace, normPosition, planeByte, valueBit } from '../../dsl/codecs/tileRows.js';
import { geometryOf, presetModel, tiltFast } from '../../dsl/index.js';
import { abreastOf } from '../../dsl/stages/tiltCodes.js';
import { keyFieldBit, normIndex, valueFieldBit } from '../../runtime/reference/unpackTilt.js';

const positions = Array.from({ length: 64 }, (_, position) => position);
const geometries = (['llama-3.1-8b', 'smollm2-135m', 'gemma-2-9b'] as const).map((name) =>
  geometryOf(tiltFast, presetModel(name)),
);

describe.each(geometries.map((g) => ({ size: g.groupComponents, g })))('groups of $size components', ({ size, g }) => {
  const places = positions.flatMap((position) => Array.from({ length: size }, (_, c) => ({ position, c })));

  it('fill a byte plane as the reference has it, every byte once', () => {
    const bytes = places.map(({ position, c }) => planeByte(position, c, size));
    expect(bytes.map((byte) => byte * 8)).toEqual(places.map(({ position, c }) => keyFieldBit(position, c, 0, g, 2)));
    expect([...bytes].sort((a, b) => a - b)).toEqual(Array.from({ length: 64 * size }, (_, byte) => byte));
  });

  it('fill a nibble plane as the reference has it, every byte twice', () => {
    const bits = places.map(({ position, c }) => nibbleByte(position, c, size) * 8 + (position < 32 ? 0 : 4));
    expect(bits).toEqual(places.map(({ position, c }) => keyFieldBit(position, c, 0, g, 1)));
    expect([...bits].sort((a, b) => a - b)).toEqual(Array.from({ length: 64 * size }, (_, nibble) => nibble * 4));
  });
});

describe.each([32, 64, 96, 128, 256])('values of %i channels', (d) => {
  it('lie where the reference has them, every two bits once', () => {
    const places = positions.flatMap((position) => Array.from({ length: d }, (_, channel) => ({ position, channel })));
    const bits = places.map(({ position, channel }) => valueBit(position, channel, d, abreastOf(d)));
    expect(bits).toEqual(places.map(({ position, channel }) => valueFieldBit(position, channel, d)));
    expect([...bits].sort((a, b) => a - b)).toEqual(Array.from({ length: 64 * d }, (_, code) => code * 2));
  });
});

it('norms lie where the reference has them, and positions are found again', () => {
  expect(positions.map((position) => normPlace(position))).toEqual(positions.map(normIndex));
  expect(positions.map((position) => normPosition(normPlace(position)))).toEqual(positions);
});
