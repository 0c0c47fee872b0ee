import { KvforgeError } from '../dsl/errors.js';

/** @throws KvforgeError `wrong-use` for an argument that a caller in plain JavaScript left out or mistook */
export function checkArguments(
  model: unknown,
  target: unknown,
  choice: unknown,
  choices = 'tunables by stage name',
): void {
  check(model, 'model', 'a model', "Pass presetModel('llama-3.1-8b'), or modelFrom(config).");
  check(target, 'target', 'a target', 'Pass defaultTargets.cuda or defaultTargets.wgsl.');
  check(choice, 'choice', choices, 'Leave it out for the defaults.');
}

function check(value: unknown, at: string, expected: string, hint: string): void {
  const isPromise = value instanceof Promise;
  if (typeof value === 'object' && value !== null && !isPromise && !Array.isArray(value)) return;
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  const received = isPromise ? 'a promise, which was not awaited' : Array.isArray(value) ? 'a list' : text;
  throw new KvforgeError('wrong-use', { at, expected, received, hint });
}
