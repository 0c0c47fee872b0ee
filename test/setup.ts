import fc from 'fast-check';

// The same cases on every run, so that a failure is the change's and not the draw's; another seed meets other cases:
// KVFORGE_SEED=7 npx vitest run test/stages
fc.configureGlobal({ seed: Number(process.env.KVFORGE_SEED ?? 20261201) });
