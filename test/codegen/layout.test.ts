import { describe, expect, it } from 'vitest';
import { halfPrecisionBytes, layoutSequence, recordBytes } from '../../codegen/plan/layout.js';
import { geometryOf, presetModel, shard } from '../../dsl/index.js';

const llama = geometryOf(shard, presetModel('llama-3.1-8b'));

describe('the byte plan', () => {
  // The table of the Shard write-up's accounting: bytes of one layer against 4096 a token.
  it.each([
    [1024, 5.1, 1],
    [4096, 8.8, 1],
    [8192, 10.04, 2],
    [32768, 11.19, 2],
    [131072, 11.5, 1],
  ])('gives the published ratio at %i tokens', (tokens, ratio, digits) => {
    const bytes = layoutSequence(llama, { tokens, generated: 0 }).bytes + recordBytes;
    expect((halfPrecisionBytes(llama, tokens) / bytes).toFixed(digits)).toBe(ratio.toFixed(digits));
  });

  it('sums to the parts of the specification, by hand, at 8192 tokens', () => {
    const middle = 8192 - 68;
    const keys = 96 * middle + 192 * 1024 + 2 * 192 * 2 + 2 * 1024;
    const values = 256 * middle + 2048 + 2 * 1024;
    const exact = 68 * 4096;
    const parts = layoutSequence(llama, { tokens: 8192, generated: 0 }).parts;
    expect(parts.reduce((sum, part) => sum + part.bytes, 0)).toBe(keys + values + exact);
  });

  it('costs 2080 bytes for a generated token in an 8-bit stream', () => {
    const at = (generated: number) => layoutSequence(llama, { tokens: 8192, generated }).bytes;
    expect(at(4096) - at(0)).toBe(4096 * 2080);
  });

  it('never overlaps parts, aligns each to 16 bytes and the whole to 256', () => {
    for (const tokens of [0, 1, 67, 68, 69, 1000]) {
      const { parts, bytes } = layoutSequence(llama, { tokens, generated: 3 });
      let end = 0;
      for (const part of parts) {
        expect(part.offset % 16).toBe(0);
        expect(part.offset).toBeGreaterThanOrEqual(end);
        end = part.offset + part.bytes;
      }
      expect(bytes).toBeGreaterThanOrEqual(end);
      expect(bytes % 256).toBe(0);
    }
  });

  it('refuses counts that are no counts', () => {
    expect(() => layoutSequence(llama, { tokens: 1.5, generated: 0 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: tokens: expected a whole number from 0 to 16777216, got 1.5. Give the tokens of one sequence.]`,
    );
    expect(() => layoutSequence(llama, { tokens: 1, generated: -1 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: generated: expected a whole number from 0 to 16777216, got -1. Give the tokens of one sequence.]`,
    );
  });
});
