/** The process that `kvforge tune` measures in: a candidate that hangs or crashes takes this one with it. */

import type { Request } from '../runtime/tune/protocol.js';
import { worker } from '../runtime/tune/worker.js';
import { type DeviceName, openDevice } from './devices.js';
import { resolveModel, resolveScheme } from './resolve.js';

const answer = worker({
  openDevice: (name) =>
    openDevice(
      name as DeviceName,
      { checks: 'none' },
      { onInterrupt: () => ({ release: () => {} }), progress: () => {}, colors: false },
    ),
  resolve: async (scheme, model) => {
    const shape = await resolveModel(model);
    return { scheme: await resolveScheme(scheme, shape), model: shape };
  },
});

// An interruption of the terminal reaches this process too; the tuner ends it.
process.on('SIGINT', () => {});
process.on('disconnect', () => process.exit());
process.on('message', async (request: Request) => {
  const reply = await answer(request);
  process.send?.(reply);
});
