declare module 'node-gyp-build' {
  /** Finds the binary of an addon: under `build/` of the folder, or under `prebuilds/` for this platform. */
  const nodeGypBuild: { path(folder: string): string };
  export default nodeGypBuild;
}
