import { mix } from '../mix.js';
import { kivi2, kivi4 } from './kivi.js';

/** AsymKV (Tao et al. 2024): errors of keys grow in the softmax, those of values average, so keys get twice the bits. */
export const kiviK4V2 = mix({ name: 'kivi-k4v2', keys: kivi4, values: kivi2 });
