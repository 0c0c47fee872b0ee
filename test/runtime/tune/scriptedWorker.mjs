/** Stands in for the process that measures: it answers, crashes or hangs as the number of warps says. */

const name = process.env.SCRIPTED_DEVICE ?? 'Scripted GPU';
const facts = { name, driver: '1.0', multiprocessors: 100, sharedBytes: 100_000, features: [], clock: 'device' };

process.on('disconnect', () => process.exit());
process.on('message', (request) => {
  const say = (reply) => process.send(reply);
  if (request.type === 'open') {
    if (request.device === 'missing') {
      const parts = { at: 'cuda', expected: 'a driver', received: 'none', hint: 'Install one.' };
      return say({ type: 'failed', failure: { code: 'missing-capability', ...parts } });
    }
    if (request.device === 'crashing') {
      process.stderr.write('no GPU here\n');
      process.exit(9);
    }
    return say({ type: 'opened', facts });
  }
  if (request.type === 'repeat') return say({ type: 'repeated', samples: request.variants.map(() => [50, 51, 50]) });
  switch (request.variant.tunables.warps) {
    case 1:
      process.stderr.write('CUDA error 719\n');
      process.exit(7);
      break;
    case 2:
      process.kill(process.pid, 'SIGSEGV');
      break;
    case 3:
      for (;;);
    case 4: {
      const parts = { at: 'attend', expected: 'an answer', received: 'error 700', hint: 'Open a new process.' };
      return say({ type: 'failed', failure: { code: 'device-lost', ...parts } });
    }
    case 5: {
      const parts = { at: 'run', expected: 'the work to complete', received: 'error 700', hint: '' };
      return say({ type: 'failed', failure: { code: 'kernel-fault', ...parts } });
    }
    default:
      return say({ type: 'measured', samples: [process.pid], bytes: 1000, cold: true });
  }
});
