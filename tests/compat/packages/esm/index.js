import { customAlphabet, nanoid } from "nanoid";

const digits = customAlphabet("0123456789", 8);

export const handler = async (event) => ({ id: nanoid(event.length), digits: digits() });
