import { KvforgeError } from '../../dsl/errors.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Scheme } from '../../dsl/scheme.js';
import type { Device } from '../device.js';
import { Measuring } from './measuring.js';
import type { DeviceFacts, Failure, Reply, Request } from './protocol.js';

/** What the process that measures needs of the layer above it. */
export interface WorkerTools {
  readonly openDevice: (name: string) => Promise<Device>;
  readonly resolve: (scheme: string, model: string) => Promise<{ scheme: Scheme; model: ModelShape }>;
}

/** Answers the requests of a tuner, one after the other. */
export function worker(tools: WorkerTools): (request: Request) => Promise<Reply> {
  let measuring: Measuring | undefined;
  const answer = async (request: Request): Promise<Reply> => {
    if (request.type === 'open') {
      const { scheme, model } = await tools.resolve(request.scheme, request.model);
      const device = await tools.openDevice(request.device);
      measuring = new Measuring(device, scheme, model);
      return { type: 'opened', facts: factsOf(device) };
    }
    if (measuring === undefined) throw new Error('a measurement was asked for before the device was opened');
    if (request.type === 'compile') return measuring.compile(request.target, request.stage, request.tunables);
    const { target, work } = request;
    if (request.type === 'repeat') return measuring.repeat(target, work, request.variants);
    return measuring.measure(target, work, request.variant, request.checked);
  };
  return (request) => answer(request).catch((error: unknown) => ({ type: 'failed', failure: failureOf(error) }));
}

function factsOf(device: Device): DeviceFacts {
  const { name, driver, architecture, multiprocessors } = device.identity;
  const { clock, limits } = device;
  const features = [...device.features];
  return { name, driver, architecture, multiprocessors, sharedBytes: limits.sharedBytes, features, clock };
}

function failureOf(error: unknown): Failure {
  if (error instanceof KvforgeError) return { code: error.code, ...error.parts };
  const received = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return { code: 'internal', at: 'tuner', expected: 'no fault of kvforge', received, hint: '' };
}
