import { KvforgeError } from '../dsl/errors.js';

/** SHA-256 in hexadecimal digits, by what both Node and browsers have for it. */
export async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  // Browsers define it in secure contexts only, as they do WebGPU.
  const subtle: typeof crypto.subtle | undefined = crypto.subtle;
  if (subtle === undefined) {
    throw new KvforgeError('missing-capability', {
      at: 'crypto.subtle',
      expected: 'a secure context',
      received: 'a page without one',
      hint: 'Serve the page over https, or from localhost.',
    });
  }
  const digest = new Uint8Array(await subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
