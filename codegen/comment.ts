/**
 * A comment line of generated text. Names in it may come from anywhere: what could end the line, or join the next one
 * to it, is taken out.
 *
 * @example
 * commentLine('scheme of a\nb'); // '// scheme of a b'
 */
export function commentLine(text: string): string {
  // C++ continues a line that ends in a backslash.
  return `// ${text.replace(/[\p{Cc}\u2028\u2029]+/gu, ' ').replace(/[\\\s]+$/, '')}`;
}
