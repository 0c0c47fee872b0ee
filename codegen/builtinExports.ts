import * as channelMax from '../dsl/codecs/channelMax.js';
import * as float8 from '../dsl/codecs/float8.js';
import * as hadamard from '../dsl/codecs/hadamard.js';
import * as jacobi from '../dsl/codecs/jacobi.js';
import * as lloydMax from '../dsl/codecs/lloydMax.js';
import * as midRise from '../dsl/codecs/midRise.js';
import * as nuq from '../dsl/codecs/nuq.js';
import * as observedWeights from '../dsl/codecs/observedWeights.js';
import * as pca from '../dsl/codecs/pca.js';
import * as polar from '../dsl/codecs/polar.js';
import * as tileRows from '../dsl/codecs/tileRows.js';
import * as uniform from '../dsl/codecs/uniform.js';
import * as unrope from '../dsl/codecs/unrope.js';
import * as vq from '../dsl/codecs/vq.js';
import * as packing from '../dsl/packing.js';
import * as random from '../dsl/random.js';

// By name, as a bundle has no folder to read; `scripts/lowerBuiltins.ts` lowers the same files.
const modules: readonly object[] = [
  channelMax,
  float8,
  hadamard,
  jacobi,
  lloydMax,
  midRise,
  nuq,
  observedWeights,
  pca,
  polar,
  tileRows,
  uniform,
  unrope,
  vq,
  packing,
  random,
];

/** What the built-in codec modules export, by name: a device function is a built-in one only if it is one of these. */
export const builtinExports: ReadonlyMap<string, unknown> = new Map(
  modules.flatMap((module) => Object.entries(module)),
);

// Kernels and lowered functions are found by a function's name. A minifier shortens names, but not those of exports.
for (const [name, value] of builtinExports) {
  if (typeof value === 'function' && value.name !== name) Object.defineProperty(value, 'name', { value: name });
}
