import { setTimeout } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import { defaultTargets } from '../../../codegen/generate.js';
import { packagePath } from '../../../codegen/packageRoot.js';
import { ChildMeasurer } from '../../../runtime/tune/child.js';
import { facts } from './scripted.js';

function measurer(device = 'cuda'): ChildMeasurer {
  const entry = packagePath('test', 'runtime', 'tune', 'scriptedWorker.mjs');
  const made = new ChildMeasurer({ entry, execArgv: [], open: { type: 'open', scheme: 's', model: 'm', device } });
  onTestFinished(() => made.close());
  return made;
}

const ask = (child: ChildMeasurer, warps: number, limitMs = 20_000) =>
  child.ask(
    {
      type: 'measure',
      target: defaultTargets.cuda,
      work: { stage: 'attend', shape: { sequences: 1, tokens: 64 } },
      variant: { tunables: { warps } },
      checked: false,
    },
    limitMs,
  );

const pidOf = async (child: ChildMeasurer) => {
  const outcome = await ask(child, 0);
  return outcome.type === 'measured' ? outcome.samples[0]! : 0;
};

const kernelFault = {
  code: 'kernel-fault',
  at: 'run',
  expected: 'the work to complete',
  received: 'error 700',
  hint: '',
};

it('keeps its process while that answers', async () => {
  const child = measurer();
  expect(await child.facts()).toEqual(facts);
  const pid = await pidOf(child);
  expect(pid).not.toBe(process.pid);
  expect(await pidOf(child)).toBe(pid);
  await child.close();
  expect(() => process.kill(pid, 0)).toThrow();
});

it.each([
  ['exits', 1, { type: 'crashed', reason: 'the process ended with exit code 7: CUDA error 719' }],
  ['is killed', 2, { type: 'crashed', reason: 'the process ended with SIGSEGV' }],
  ['hangs', 3, { type: 'hung', reason: 'no answer in 500 ms' }],
  ['loses its device', 4, { type: 'crashed', reason: 'attend: expected an answer, got error 700' }],
  // The device of that process answers nothing more: the next candidate would be taken for the one that lost it.
  ['has run a kernel that faults', 5, { type: 'failed', failure: kernelFault }],
])('says so when it %s, and goes on with another one', async (_, warps, outcome) => {
  const child = measurer();
  const before = await pidOf(child);
  expect(await ask(child, warps, warps === 3 ? 500 : 20_000)).toEqual(outcome);
  expect(() => process.kill(before, 0)).toThrow();
  const after = await pidOf(child);
  expect(after).toBeGreaterThan(0);
  expect(after).not.toBe(before);
});

it('that is closed answers no more, as a crash would be remembered', async () => {
  const child = measurer();
  const before = await pidOf(child);
  const answers: unknown[] = [];
  void ask(child, 3).then((outcome) => answers.push(outcome));
  // Asked once the one before hangs: the process is not to be opened again for it.
  await setTimeout(100);
  await child.close();
  void ask(child, 0).then((outcome) => answers.push(outcome));
  void child.facts().then((found) => answers.push(found));
  await setTimeout(700);
  expect(answers).toEqual([]);
  expect(() => process.kill(before, 0)).toThrow();
});

it('passes on why a device cannot be opened', async () => {
  await expect(measurer('missing').facts()).rejects.toThrow('cuda: expected a driver, got none. Install one.');
  await expect(ask(measurer('crashing'), 0)).rejects.toThrow(
    'device crashing: expected a device that opens, got the process ended with exit code 9: no GPU here. Run kvforge doctor.',
  );
});
