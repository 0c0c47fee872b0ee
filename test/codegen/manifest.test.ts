import { expect, it } from 'vitest';
import { defaultTargets, generate, manifestText } from '../../codegen/generate.js';
import { evaluateExtent, type Manifest } from '../../codegen/manifest.js';
import { type PartName, type RecordField, recordIndex } from '../../codegen/plan/layout.js';
import { lloydMaxLevels, presetModel, shard } from '../../dsl/index.js';
import { buildTables } from '../../runtime/tables.js';

const model = presetModel('smollm2-135m');

it('holds as data what a runtime needs besides the texts', async () => {
  const { manifest, files, geometry } = await generate(shard, model, defaultTargets.cuda);
  const read = JSON.parse(manifestText(manifest)) as Manifest;
  expect(read.scheme.stream.device).toEqual({ scale: 'vectorNorm', code: 'nearestLevel', value: 'levelValue' });
  expect(read.scheme.stream.levels).toEqual(lloydMaxLevels(8, 64).map(Math.fround));

  // The record: as the texts number it, and as the runtime writes it.
  const decompress = files.get('decompress.cu')!;
  for (const { name, word } of read.record.entries) {
    expect(word).toBe(recordIndex(name as RecordField | PartName));
    const constant = `AT_${name.replace(/([a-z])([A-Z])/g, '$1_$2').toUpperCase()}`;
    const printed = new RegExp(`u32 ${constant} = (\\d+);`).exec(decompress);
    if (printed) expect(Number(printed[1])).toBe(word);
  }
  expect(decompress).toContain(
    `u32 AT_STREAM_KEY_NORMS = ${recordIndex('streamKeyNorms')};  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]`,
  );
  expect(new Set(read.record.entries.map(({ word }) => word)).size).toBe(read.record.entries.length);
  expect(read.record.words).toBe(64);

  // The tables: end to end, as the runtime fills them.
  const tables = buildTables(geometry, 200, geometry.model.rope.invFreq);
  let end = 0;
  for (const { offset, shape } of read.tables) {
    expect(offset).toBe(end);
    end += shape.reduce<number>((count, extent) => count * evaluateExtent(extent, { positions: 200 }), 1);
  }
  expect(end).toBe(tables.length);
  expect([...tables.subarray(0, 256)]).toEqual(read.scheme.stream.levels);
  expect([...tables.subarray(read.tables[1]!.offset, read.tables[1]!.offset + 2)]).toEqual([1, 0]);
});
