import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { KvforgeError } from '../../../dsl/errors.js';
import type { Outcome } from '../../../runtime/tune/child.js';
import { chooseWinner } from '../../../runtime/tune/choose.js';
import { measured, Scripted, searched, spaceOf, temporaryFolder } from './scripted.js';

const warpsOf = ({ tunables }: { tunables: Readonly<Record<string, number>> }) => tunables.warps;

describe('a search', () => {
  it('takes the defaults first, then the best predictions, and finds the fastest', async () => {
    const times = [50, 70, 30, 40];
    const measurer = new Scripted(({ tunables }) => ({ outcome: measured(times[tunables.warps!]!), ms: 10 }));
    const { timed, untried, history } = await searched(spaceOf([20, 30, 10, 15]), measurer);
    expect(measurer.measured).toEqual(['0', '2', '3', '1']);
    expect(chooseWinner(timed)!.candidate.tunables).toEqual({ warps: 2 });
    expect(untried).toEqual([{ tunables: { warps: 99 }, kind: 'pruned', reason: '99 warps for a block of 32' }]);
    expect(history.map(({ best }) => best)).toEqual([50, 30, 30, 30]);
  });

  it('compiles a text once for all of its splits', async () => {
    const measurer = new Scripted(() => ({ outcome: measured(50), ms: 10 }));
    await searched(spaceOf([10, 10], [8, 16]), measurer);
    expect(measurer.measured).toEqual(['0/8', '0/16', '1/8', '1/16']);
    const checked = measurer.asked.slice(0, 4).map((one) => one.type === 'measure' && one.checked);
    expect(checked).toEqual([false, true, false, true]);
  });

  it('compiles the texts that come next at once, and none that it leaves out', async () => {
    const measurer = new Scripted(() => ({ outcome: measured(50), ms: 10 }));
    await searched(spaceOf([10, 12, 11, 99, 13], [4, 8]), measurer, { compileAhead: 3 });
    const order = measurer.asked.map((request) => {
      if (request.type === 'compile') return `compile ${request.tunables.map(({ warps }) => warps)}`;
      return request.type === 'measure' ? `${request.variant.tunables.warps}/${request.variant.splits}` : 'repeat';
    });
    expect(order).toEqual(['compile 0,2,1', '0/4', '0/8', '2/4', '2/8', '1/4', '1/8', '4/4', '4/8', 'repeat']);
  });

  it('leaves out what is predicted to be three times as slow, unless it is to be exhaustive', async () => {
    const script = () => ({ outcome: measured(50), ms: 10 });
    const short = new Scripted(script);
    const { untried } = await searched(spaceOf([10, 29, 31]), short);
    expect(short.measured).toEqual(['0', '1']);
    expect(untried.at(-1)).toEqual({
      tunables: { warps: 2 },
      splits: undefined,
      kind: 'ordering',
      reason: 'predicted 31.0 us, over 3 times the 10.0 us of the fastest',
    });
    const long = new Scripted(script);
    await searched(spaceOf([10, 29, 31]), long, { exhaustive: true });
    expect(long.measured).toEqual(['0', '1', '2']);
  });

  it('tries everything where there are no predictions', async () => {
    const measurer = new Scripted(() => ({ outcome: measured(50), ms: 10 }));
    await searched(spaceOf([undefined, undefined, undefined]), measurer);
    expect(measurer.measured).toEqual(['0', '1', '2']);
  });

  it('never times what is wrong, and tries no other splits of it', async () => {
    const measurer = new Scripted(({ tunables }) => ({
      outcome: tunables.warps === 1 ? { type: 'wrong', reason: 'error 1, at most 2e-3' } : measured(50),
      ms: 10,
    }));
    const lines: string[] = [];
    const { timed, untried } = await searched(spaceOf([10, 10, 10], [4, 8]), measurer, { lines });
    expect(measurer.measured).toEqual(['0/4', '0/8', '1/4', '2/4', '2/8']);
    expect(timed.map(({ candidate }) => warpsOf(candidate))).toEqual([0, 0, 2, 2]);
    expect(untried.slice(1).map(({ splits, kind, reason }) => [splits, kind, reason])).toEqual([
      [4, 'wrong', 'error 1, at most 2e-3'],
      [8, 'wrong', 'error 1, at most 2e-3'],
    ]);
    expect(lines).toContain('attend 1x8192: warps 1, splits 4: wrong: error 1, at most 2e-3');
  });

  it('goes on after a crash and after a hang, and remembers both', async () => {
    const folder = temporaryFolder();
    const script = new Scripted(({ tunables: { warps } }) => {
      if (warps === 1) return { outcome: { type: 'crashed', reason: 'SIGSEGV' }, ms: 10 };
      return { outcome: measured(50), ms: warps === 2 ? 1e6 : 10 };
    });
    const { timed, untried } = await searched(spaceOf([10, 10, 10, 10]), script, { folder });
    expect(timed.map(({ candidate }) => warpsOf(candidate))).toEqual([0, 3]);
    expect(untried.slice(1).map(({ kind, reason }) => [kind, reason])).toEqual([
      ['crashed', 'SIGSEGV'],
      ['hung', 'no answer in 10 s; if the device is only slow, raise --limit'],
    ]);

    const again = new Scripted(() => ({ outcome: measured(10), ms: 10 }));
    const known = await searched(spaceOf([10, 10, 10, 10]), again, { folder });
    expect(again.measured).toEqual([]);
    expect(known.untried.slice(1).map(({ kind, reason }) => [kind, reason])).toEqual([
      ['crashed', 'SIGSEGV (known; --retry tries again)'],
      ['hung', 'no answer in 10 s; if the device is only slow, raise --limit (known; --retry tries again)'],
    ]);
    await searched(spaceOf([10, 10, 10, 10]), again, { folder, retry: true });
    expect(again.measured).toEqual(['1', '2']);
  });

  it('tries no other splits of a text that is known to hang', async () => {
    const folder = temporaryFolder();
    const hanging = new Scripted(({ splits }) => ({ outcome: measured(50), ms: splits === 8 ? 1e6 : 10 }));
    await searched(spaceOf([10], [4, 8]), hanging, { folder });
    const again = new Scripted(() => ({ outcome: measured(10), ms: 10 }));
    const { untried } = await searched(spaceOf([10], [4, 8, 16]), again, { folder });
    expect(again.measured).toEqual([]);
    expect(untried.at(-1)).toEqual({
      tunables: { warps: 0 },
      splits: 16,
      kind: 'hung',
      reason: 'as warps 0, splits 8: no answer in 10 s; if the device is only slow, raise --limit',
    });
  });

  it('tries no other splits of what does not compile', async () => {
    const folder = temporaryFolder();
    const failure = { code: 'compile-failed', at: 'attend.cu:7', expected: 'CUDA', received: 'error', hint: '' };
    const refusing = new Scripted(() => ({ outcome: { type: 'failed', failure }, ms: 10 }));
    const { untried } = await searched(spaceOf([10], [4, 8]), refusing, { folder });
    expect(refusing.measured).toEqual(['0/4']);
    expect(untried.slice(1).map(({ splits, kind, reason }) => [splits, kind, reason])).toEqual([
      [4, 'refused', 'attend.cu:7: expected CUDA, got error'],
      [8, 'refused', 'attend.cu:7: expected CUDA, got error'],
    ]);
  });

  it('does not remember what had no room', async () => {
    const folder = temporaryFolder();
    const failure = { code: 'does-not-fit', at: 'cache', expected: 'at most 1', received: '2', hint: '' };
    const full = new Scripted(() => ({ outcome: { type: 'failed', failure }, ms: 10 }));
    const { untried } = await searched(spaceOf([10]), full, { folder });
    expect(untried.at(-1)).toMatchObject({ kind: 'refused', reason: 'cache: expected at most 1, got 2' });
    expect(readdirSync(folder)).toEqual([]);
  });

  it('takes no time of another model with the same texts', async () => {
    const folder = temporaryFolder();
    const script = () => new Scripted(() => ({ outcome: measured(50), ms: 10 }));
    await searched(spaceOf([10], undefined, 'a sliding window'), script(), { folder });
    const other = script();
    await searched(spaceOf([10], undefined, 'none'), other, { folder });
    expect(other.measured).toEqual(['0']);
    const same = script();
    await searched(spaceOf([10], undefined, 'a sliding window'), same, { folder });
    expect(same.measured).toEqual([]);
  });

  it('of a space without candidates has the reasons alone', async () => {
    const { timed, untried } = await searched(spaceOf([]), new Scripted(() => ({ outcome: measured(50), ms: 10 })));
    expect(timed).toEqual([]);
    expect(untried).toEqual([{ tunables: { warps: 99 }, kind: 'pruned', reason: '99 warps for a block of 32' }]);
  });

  it('ends where what compiles is missing, and remembers nothing of it', async () => {
    const folder = temporaryFolder();
    const failure = {
      code: 'missing-capability',
      at: 'nvrtc',
      expected: 'NVRTC',
      received: 'none',
      hint: 'Install it.',
    };
    const missing = new Scripted(() => ({ outcome: { type: 'failed', failure }, ms: 10 }));
    const run = searched(spaceOf([10, 10], [4, 8]), missing, { folder });
    await expect(run).rejects.toMatchObject({
      code: 'missing-capability',
      message: 'nvrtc: expected NVRTC, got none. Install it.',
    });
    expect(missing.measured).toEqual(['0/4']);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('ends where it is missing in the last round', async () => {
    const failure = {
      code: 'missing-capability',
      at: 'nvrtc',
      expected: 'NVRTC',
      received: 'none',
      hint: 'Install it.',
    };
    const script = new Scripted(() => ({ outcome: measured(50), ms: 10 }));
    const ask = script.ask.bind(script);
    script.ask = async (request, limit) =>
      request.type === 'repeat' ? { type: 'failed', failure } : ask(request, limit);
    await expect(searched(spaceOf([10, 10]), script)).rejects.toThrow('nvrtc: expected NVRTC, got none. Install it.');
  });

  const kernelFault = { code: 'kernel-fault', at: 'run', expected: 'an end', received: 'error 700', hint: '' };
  it.each<[string, Outcome, number]>([
    ['crash', { type: 'crashed', reason: 'SIGSEGV' }, 10],
    ['hang', measured(50), 1e6],
    ['fault of a kernel', { type: 'failed', failure: kernelFault }, 10],
  ])(
    'ends where the device does not open again after a %s, and does not hold it against the candidate',
    async (_, outcome, ms) => {
      const folder = temporaryFolder();
      const script = new Scripted(({ tunables }) =>
        tunables.warps === 1 ? { outcome, ms } : { outcome: measured(50), ms: 10 },
      );
      const gone = {
        at: 'device cuda',
        expected: 'a device that opens',
        received: 'none',
        hint: 'Run kvforge doctor.',
      };
      script.facts = () => Promise.reject(new KvforgeError('device-lost', gone));
      await expect(searched(spaceOf([10, 10, 10]), script, { folder })).rejects.toThrow(
        'device cuda: expected a device that opens, got none. Run kvforge doctor.',
      );
      expect(script.measured).toEqual(['0', '1']);
      expect(readdirSync(folder)).toHaveLength(1);

      const again = new Scripted(() => ({ outcome: measured(50), ms: 10 }));
      const { timed } = await searched(spaceOf([10, 10, 10]), again, { folder });
      expect(again.measured).toEqual(['1', '2']);
      expect(timed).toHaveLength(3);
    },
  );

  it('remembers what the device has no room for, and tries no other splits of it', async () => {
    const folder = temporaryFolder();
    const outcome: Outcome = { type: 'refused', reason: 'attend.cu: expected at most 1 threads, got 2' };
    const script = new Scripted(() => ({ outcome, ms: 10 }));
    const { untried } = await searched(spaceOf([10], [4, 8]), script, { folder });
    expect(script.measured).toEqual(['0/4']);
    expect(untried.slice(1).map(({ splits, kind }) => [splits, kind])).toEqual([
      [4, 'refused'],
      [8, 'refused'],
    ]);
    expect(readdirSync(folder)).toHaveLength(1);
  });

  it('throws what is a fault of its own', async () => {
    const failure = { code: 'internal', at: 'tuner', expected: 'no fault', received: 'TypeError: x', hint: '' };
    const broken = new Scripted(() => ({ outcome: { type: 'failed', failure }, ms: 10 }));
    await expect(searched(spaceOf([10]), broken)).rejects.toThrow('TypeError: x');
  });
});

describe('the budget', () => {
  const twenty = Array.from({ length: 20 }, () => 10);

  it.each([
    ['equal', () => 1000],
    ['uneven', (warps: number) => (warps % 3 === 0 ? 1500 : 400)],
    ['growing', (warps: number) => 300 + 150 * warps],
    ['one that never ends', (warps: number) => (warps === 4 ? 1e9 : 900)],
  ])('is kept within a tenth: %s', async (_, cost) => {
    const measurer = new Scripted(({ tunables }) => ({
      outcome: measured(50 + tunables.warps!),
      ms: cost(tunables.warps!),
    }));
    const { timed, untried } = await searched(spaceOf(twenty), measurer, { deadline: 10_000, candidateMs: 60_000 });
    expect(measurer.clock).toBeLessThanOrEqual(11_000);
    expect(timed.length).toBeGreaterThan(2);
    expect(untried.filter(({ kind }) => kind === 'budget').length + timed.length).toBe(20);
  });

  it('that gives up a candidate does not count it as hung', async () => {
    const folder = temporaryFolder();
    const slow = new Scripted(() => ({ outcome: measured(50), ms: 20_000 }));
    const { untried } = await searched(spaceOf([10]), slow, { folder, deadline: 10_000, candidateMs: 60_000 });
    expect(untried.at(-1)).toMatchObject({ kind: 'budget', reason: 'it was given up after 10.5 s; raise --budget' });
    expect(slow.clock).toBe(10_500);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('that ends before the first time says what to raise, and no longer once there is one', async () => {
    const none = new Scripted(() => ({ outcome: measured(50), ms: 10 }));
    const { untried } = await searched(spaceOf([10]), none, { deadline: 0 });
    expect(untried.at(-1)).toMatchObject({ kind: 'budget', reason: 'the budget was used up; raise --budget' });
    const one = new Scripted(() => ({ outcome: measured(50), ms: 10_000 }));
    const some = await searched(spaceOf([10, 10]), one, { deadline: 10_000, candidateMs: 60_000 });
    expect(some.untried.at(-1)).toMatchObject({ kind: 'budget', reason: 'the budget was used up' });
  });

  it('goes on where it stopped', async () => {
    const folder = temporaryFolder();
    const script = () => ({ outcome: measured(50), ms: 1000 });
    const first = new Scripted(script);
    await searched(spaceOf(twenty), first, { folder, deadline: 5000 });
    const second = new Scripted(script);
    const { timed } = await searched(spaceOf(twenty), second, { folder });
    expect(first.measured.length).toBeGreaterThan(1);
    expect([...first.measured, ...second.measured].sort()).toEqual(twenty.map((_, warps) => String(warps)).sort());
    expect(timed).toHaveLength(20);
  });
});

describe('the last round', () => {
  it('decides between those within a tenth, four at most, and is not taken again', async () => {
    const folder = temporaryFolder();
    const first = [100, 101, 102, 103, 104, 120];
    const later = [105, 99, 98, 97, 1, 1];
    let finals = false;
    const script = new Scripted(({ tunables: { warps } }) => ({
      outcome: measured(...Array.from({ length: 5 }, () => (finals ? later : first)[warps!]!)),
      ms: 10,
    }));
    const ask = script.ask.bind(script);
    script.ask = (request, limit) => {
      finals = request.type === 'repeat';
      return ask(request, limit);
    };
    const { timed } = await searched(spaceOf(first.map(() => 10)), script, { folder });
    const repeats = script.asked.filter(({ type }) => type === 'repeat');
    expect(repeats.map((one) => one.type === 'repeat' && one.variants.map(warpsOf))).toEqual([[0, 1, 2, 3]]);
    const winner = chooseWinner(timed)!;
    expect([warpsOf(winner.candidate), winner.measured.microseconds]).toEqual([3, 97]);

    const again = new Scripted(() => ({ outcome: measured(1), ms: 10 }));
    const known = await searched(spaceOf(first.map(() => 10)), again, { folder });
    expect(again.asked).toEqual([]);
    expect(chooseWinner(known.timed)!.measured.microseconds).toBe(97);
  });

  it('of an earlier search does not decide about what has turned out faster since', async () => {
    const folder = temporaryFolder();
    const script = (times: readonly number[]) =>
      new Scripted(({ tunables: { warps } }) => ({ outcome: measured(times[warps!]!), ms: 10 }));
    await searched(spaceOf([10, 10]), script([100, 101]), { folder });
    const { timed } = await searched(spaceOf([10, 10, 10]), script([0, 0, 50]), { folder });
    expect(timed.map(({ record }) => record.finals !== undefined)).toEqual([true, true, false]);
    expect(warpsOf(chooseWinner(timed)!.candidate)).toBe(2);
  });

  it('lists as ties what the noise does not tell apart, and takes the first of them', async () => {
    const samples = [
      [50, 52, 54, 51, 53],
      [51, 49, 53, 52, 50],
      [80, 80, 80, 80, 80],
    ];
    const measurer = new Scripted(({ tunables }) => ({ outcome: measured(...samples[tunables.warps!]!), ms: 10 }));
    const { timed } = await searched(spaceOf([10, 10, 10]), measurer);
    const winner = chooseWinner(timed)!;
    expect([warpsOf(winner.candidate), winner.measured.microseconds, winner.measured.spread]).toEqual([0, 52, 1]);
    expect(winner.ties.map(({ candidate, measured }) => [warpsOf(candidate), measured.microseconds])).toEqual([
      [1, 51],
    ]);
  });
});

describe('a winner', () => {
  it('is no more than a tenth slower than the fastest, however the samples scatter', async () => {
    const samples = [
      [180, 90, 270, 100, 260],
      [100, 60, 140, 50, 150],
    ];
    const measurer = new Scripted(({ tunables }) => ({ outcome: measured(...samples[tunables.warps!]!), ms: 10 }));
    const { timed } = await searched(spaceOf([10, 10]), measurer);
    const winner = chooseWinner(timed)!;
    expect([warpsOf(winner.candidate), winner.measured.microseconds]).toEqual([1, 100]);
    expect(winner.ties).toEqual([]);
  });
});

describe('a kept time', () => {
  it.each([
    ['cut off', (text: string) => text.slice(0, 30)],
    ['of another key', (text: string) => text.replace(/"key": "./, '"key": "x')],
    ['without samples', (text: string) => text.replace(/"samples": \[[^\]]*\]/, '"samples": []')],
    ['with a negative sample', (text: string) => text.replace('50', '-50')],
  ])('that is damaged is taken again: %s', async (_, damage) => {
    const folder = temporaryFolder();
    await searched(spaceOf([10]), new Scripted(() => ({ outcome: measured(50), ms: 10 })), { folder });
    const [name] = readdirSync(folder);
    const path = join(folder, name!);
    const text = readFileSync(path, 'utf8');
    expect(damage(text)).not.toBe(text);
    writeFileSync(path, damage(text));
    const again = new Scripted(() => ({ outcome: measured(60), ms: 10 }));
    const { timed } = await searched(spaceOf([10]), again, { folder });
    expect(timed.map(({ record }) => record.samples)).toEqual([[60]]);
    expect(readdirSync(folder)).toEqual([name]);
  });
});
