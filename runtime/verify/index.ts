export type { VerifyFailure, VerifyOptions, VerifyResult, VerifyScheme } from './verifyScheme.js';
export { verifyScheme } from './verifyScheme.js';
