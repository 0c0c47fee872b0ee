import { describe, expect, test } from 'vitest';
import { KvforgeError } from '../../../dsl/errors.js';
import { timingOf } from '../../../runtime/bench/samples.js';
import { enoughRounds, inTurn } from '../../../runtime/bench/timed.js';
import type { Device, Launch } from '../../../runtime/device.js';

test('a timing is median, spread and tails of its samples', () => {
  // Sorted 1 to 10 and an outlier: median 6, distances 5 4 3 2 1 0 1 2 3 4 94, whose median is 3.
  expect(timingOf([100, 3, 1, 2, 4, 5, 10, 7, 8, 9, 6])).toEqual({ us: 6, spread: 3, p10: 2, p90: 10, samples: 11 });
  expect(timingOf([4, 2])).toEqual({ us: 3, spread: 1, p10: 2.2, p90: 3.8, samples: 2 });
  expect(timingOf([7])).toEqual({ us: 7, spread: 0, p10: 7, p90: 7, samples: 1 });
});

test('samples are taken in turn, and as many as asked for', async () => {
  const order: string[] = [];
  const timed = (name: string) => ({
    name,
    sample: async (count: number) => {
      order.push(`${name}${count}`);
      return Array.from({ length: count }, () => order.length);
    },
  });
  const taken = await inTurn([timed('a'), timed('b')], 12);
  expect(order).toEqual(['a2', 'b2', 'a2', 'b2', 'a3', 'b3', 'a2', 'b2', 'a3', 'b3']);
  expect(taken.get('a')).toEqual([1, 1, 3, 3, 5, 5, 5, 7, 7, 9, 9, 9]);
  expect(taken.get('b')).toHaveLength(12);
});

describe('rounds of a sample', () => {
  const launch = {} as Launch;
  const device = (clock: Device['clock'], usAt: (rounds: number) => number) =>
    ({ clock, time: async (_: unknown, { rounds }: { rounds: number }) => [usAt(rounds)] }) as unknown as Device;

  test('last 2 ms in all', async () => {
    expect(
      await enoughRounds(
        device('device', () => 50),
        [[launch], [launch]],
      ),
    ).toBe(20);
    expect(
      await enoughRounds(
        device('device', () => 5000),
        [[launch]],
      ),
    ).toBe(1);
  });

  test('hold no more than 4096 launches', async () => {
    expect(
      await enoughRounds(
        device('device', () => 0.001),
        [[launch], [launch]],
      ),
    ).toBe(2048);
  });

  test('are one by the clock of the host', async () => {
    expect(
      await enoughRounds(
        device('host', () => 0.001),
        [[launch]],
      ),
    ).toBe(1);
  });

  const still = () => {
    throw new KvforgeError('wrong-use', { at: 'rounds', expected: 'more', received: '1', hint: 'Raise it.' });
  };

  test('are more where a coarse clock stands still', async () => {
    expect(
      await enoughRounds(
        device('device', (rounds) => (rounds < 200 ? still() : 4)),
        [[launch]],
      ),
    ).toBe(500);
  });

  test('end where it never moves', async () => {
    await expect(enoughRounds(device('device', still), [[launch]])).rejects.toThrow('rounds: expected more, got 1');
  });
});
